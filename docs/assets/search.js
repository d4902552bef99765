// A site that is opened from a folder may start no worker, and the search is one. It runs in a frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "Search";
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.importScripts = (...addresses) => Promise.all(addresses.map((each) => this.loaded(each)));
      this.inside.postMessage = (data) => this.tell(this, data);
      this.ready = this.loaded(address);
    }
    loaded(address) {
      const script = this.inside.document.createElement("script");
      script.src = address;
      return new Promise((done) => {
        script.onload = done;
        this.inside.document.body.append(script);
      });
    }
    tell(who, data) {
      const told = new MessageEvent("message", { data });
      who.dispatchEvent(told);
      who.onmessage?.(told);
    }
    postMessage(data) {
      this.ready.then(() => this.tell(this.inside, data));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
