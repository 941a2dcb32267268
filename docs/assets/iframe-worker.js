// Pages opened from the file system may not start workers, and the search runs in one. There, a hidden frame does its
// work: the script of the worker is loaded into it when the field of the search is used, and messages go both ways.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.scope = new Promise((resolve) => {
        document.addEventListener("focusin", (event) => {
          if (event.target.matches("[data-md-component=search-query]")) this.start(url, resolve);
        });
      });
    }
    start(url, resolve) {
      if (this.frame) return;
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true, title: "search" });
      document.body.append(this.frame);
      const scope = this.frame.contentWindow;
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = Object.assign(scope.document.createElement("script"), { src: url, onload: () => resolve(scope) });
      scope.document.body.append(script);
    }
    postMessage(data) {
      this.scope.then((scope) => scope.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
