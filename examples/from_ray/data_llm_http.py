# The calls are those of ray-project/ray, doc/source/data/doc_code/working-with-llms/openai_api_example.py.
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from headrace.compat import ray
from headrace.compat.ray.data.llm import HttpRequestProcessorConfig, build_llm_processor


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = asked["messages"][-1]["content"].upper()
        body = json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
ds = ray.data.from_items(["Hand me a haiku.", "Another one."])
config = HttpRequestProcessorConfig(
    url=f"http://127.0.0.1:{server.server_port}/v1/chat/completions",
    headers={"Authorization": "Bearer none"},
    qps=100,
)
processor = build_llm_processor(
    config,
    preprocess=lambda row: dict(
        payload=dict(
            model="tiny", messages=[{"role": "user", "content": row["item"]}], temperature=0.0, max_tokens=15
        )
    ),
    postprocess=lambda row: dict(response=row["http_response"]["choices"][0]["message"]["content"]),
)
rows = processor(ds).take_all()
assert rows == [{"response": "HAND ME A HAIKU."}, {"response": "ANOTHER ONE."}]
server.shutdown()
