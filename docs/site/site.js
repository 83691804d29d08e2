// The button of the navigation, which build.py made of a label: it moves the box that the label would have moved.
document.getElementById("mdbook-sidebar-toggle").addEventListener("click", () => {
  document.getElementById("mdbook-sidebar-toggle-anchor").click();
});
