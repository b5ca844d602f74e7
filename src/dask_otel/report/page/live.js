"use strict";
(() => {
  const PAUSE = 2000, AFTER_TROUBLE = 10000;
  const trouble = document.getElementById("trouble");
  let timer = 0, last = new Date();

  // Changes what differs, and nothing else: what is selected, open or scrolled stays so.
  const change = (old, next) => {
    if (old.isEqualNode(next)) return;
    if (old.nodeName !== next.nodeName || (old.id || "") !== (next.id || "")) return old.replaceWith(next);
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.data = next.data;
      return;
    }
    for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) if (name !== "open" && !next.hasAttribute(name)) old.removeAttribute(name);
    const parts = [...next.childNodes];
    const known = new Map([...old.children].filter((one) => one.id).map((one) => [one.id, one]));
    parts.forEach((part, place) => {
      // What has a name is found again where it has moved to.
      const same = known.get(part.id);
      if (same && same !== old.childNodes[place]) old.insertBefore(same, old.childNodes[place] || null);
      if (place < old.childNodes.length) change(old.childNodes[place], part);
      else old.append(part);
    });
    while (old.childNodes.length > parts.length) old.lastChild.remove();
  };

  const refresh = async () => {
    clearTimeout(timer);
    let pause = PAUSE;
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      const gone = answer.status === 404 ? "dask-otel has been removed from this scheduler" : `HTTP ${answer.status}`;
      if (!answer.ok) throw new Error(gone);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const now = page.getElementById("now");
      // A proxy may answer in its place.
      if (!now) throw new Error("another page came, such as a login: reload this one");
      change(document.getElementById("now"), now);
      trouble.textContent = "";
      last = new Date();
    } catch (error) {
      trouble.textContent = `No answer (${error.message}). Below is the state at ${last.toLocaleTimeString()}.`;
      pause = AFTER_TROUBLE;
    }
    // A page that nobody sees asks for nothing. Another request may have set it meanwhile.
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(refresh, pause);
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : refresh()));
  timer = setTimeout(refresh, PAUSE);
})();
