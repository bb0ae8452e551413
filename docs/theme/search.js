// Search in the sections of all pages, from a script beside them: a page that is opened from a disk may load no data.
const form = document.getElementById("search");
const input = form.querySelector("input");
const list = document.getElementById("found");
const root = form.dataset.root === "." ? "" : form.dataset.root.replace(/\/?$/, "/");

function rank(section, words) {
  const title = `${section.page} ${section.title}`.toLowerCase();
  const text = section.text.toLowerCase();
  if (!words.every((word) => title.includes(word) || text.includes(word))) return 0;
  return 1 + words.filter((word) => title.includes(word)).length * 10;
}

function excerpt(section, word) {
  const at = Math.max(0, section.text.toLowerCase().indexOf(word) - 50);
  return (at ? "… " : "") + section.text.slice(at, at + 160);
}

function show() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = words.length === 0 ? [] : SECTIONS
    .map((section) => [rank(section, words), section])
    .filter(([score]) => score > 0)
    .sort(([one], [other]) => other - one)
    .slice(0, 12);
  list.replaceChildren(...found.map(([, section]) => {
    const item = document.createElement("li");
    const link = document.createElement("a");
    const text = document.createElement("small");
    link.href = root + section.url;
    link.textContent = section.title === section.page ? section.page : `${section.page}: ${section.title}`;
    text.textContent = excerpt(section, words[0]);
    item.append(link, text);
    return item;
  }));
  if (words.length > 0 && found.length === 0) list.textContent = "Nothing found.";
  list.hidden = words.length === 0;
}

// On a phone the list of pages is folded, so that the text comes first.
if (matchMedia("(max-width: 48rem)").matches) document.querySelector("nav details").open = false;

form.hidden = false;
form.addEventListener("submit", (event) => {
  event.preventDefault();
  list.querySelector("a")?.click();
});
input.addEventListener("input", show);
input.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    input.value = "";
    show();
  }
});
