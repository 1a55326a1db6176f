// A worker: Python with the course's modules, which answers one request after the other.
import { loadPyodide } from "./pyodide/pyodide.mjs";

async function start() {
  const modules = await fetch(new URL("course.zip", import.meta.url));
  const python = await loadPyodide();
  python.unpackArchive(await modules.arrayBuffer(), "zip");
  return python.pyimport("in_browser");
}

const module = start();
onmessage = async ({ data }) => {
  try {
    postMessage(JSON.parse((await module).answer(...data)));
  } catch (error) {
    postMessage({ text: `error: ${error.message}`, pictures: [] });
  }
};
