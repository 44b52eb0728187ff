// Keeps the page up to date: when the server says that there is something new, the page is asked for again, and the
// parts of it that may change take the place of the old ones.
"use strict";

const parts = () => document.querySelectorAll("[data-live]");
const light = document.getElementById("light");
let asking = false;
let again = false;

function show(state, words) {
  light.dataset.state = state;
  light.textContent = words;
}

async function refresh() {
  if (asking) {
    again = true;
    return;
  }
  asking = true;
  do {
    again = false;
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
      for (const part of parts()) {
        const fresh = page.getElementById(part.id);
        if (fresh && fresh.innerHTML !== part.innerHTML) part.replaceWith(document.adoptNode(fresh));
      }
      show("live", "live");
    } catch (error) {
      show("lost", String(error.message || error));
    }
  } while (again);
  asking = false;
}

if (parts().length) {
  const source = new EventSource("/changes");
  source.onmessage = () => document.hidden || refresh();
  source.addEventListener("failed", (event) => show("lost", event.data));
  source.onerror = () => show("lost", "connection lost");
  document.addEventListener("visibilitychange", () => document.hidden || refresh());
}
