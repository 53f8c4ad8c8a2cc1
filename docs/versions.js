// A menu of versions, where the folder above has their list (scripts/site_versions.py writes it).
const root = document.documentElement.dataset.content_root;
const list = document.createElement("script");
list.src = `${root}../versions.js`;
list.onload = () => {
  const menu = document.createElement("select");
  menu.ariaLabel = "Version of these pages";
  for (const version of VERSIONS) menu.add(new Option(version));
  menu.value = DOCUMENTATION_OPTIONS.VERSION;
  menu.onchange = () => location.assign(`${root}../${menu.value}/index.html`);
  document.querySelector(".navbar-brand").after(menu);
};
document.head.append(list);
