"""A notebook: a function of a cell travels to workers, and a cell that is run again does nothing."""

import nbformat
from nbclient import NotebookClient

CELLS = [
    "import headrace as hr\n\ndef fare(batch):\n    return 3.0 + 2.5 * batch['id']",
    "rides = hr.range(2_000).predict(fare, inputs=['id'], output='fare')\nrides",
    "result = rides.write_parquet('fares')\nresult",
    "print(rides.write_parquet('fares').rows, hr.read_parquet('fares').take(1))",
]

if __name__ == "__main__":
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, kernel_name="python3").execute()
    shown = ["".join(str(output) for output in cell["outputs"]) for cell in notebook.cells]
    assert "2,000" in shown[2], shown[2]
    assert "2000 [{'id': 0, 'fare': 3.0}]" in shown[3], shown[3]
