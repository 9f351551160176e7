// Reads cases on stdin, runs them side by side in this one process, prints what each client saw.
//
// stdin:  {"url": "http://…/v1", "silence": ms, "cases": [{"client", "call", "body", "fault"}, …]}
// stdout: [{"items": […], "error": {…} | null, "gaveUp": bool}, …], in the order of the cases
//
// A client that has heard nothing for `silence` ms is aborted, as a careful caller would.
import { text } from "node:stream/consumers";
import { ask as openai } from "./openai.mjs";
import { ask as ai } from "./ai.mjs";

const CLIENTS = { openai, ai };

function describe(error) {
  if (error === undefined || error === null) return null;
  const classes = [];
  for (let p = Object.getPrototypeOf(error); p?.constructor; p = Object.getPrototypeOf(p)) {
    if (p.constructor === Object) break;
    classes.push(p.constructor.name);
  }
  return {
    classes,
    message: error.message ?? String(error),
    status: error.status ?? error.statusCode ?? null,
    code: error.code ?? null,
    param: error.param ?? null,
    type: error.type ?? null,
    cause: describe(error.cause),
  };
}

async function run({ url, silence }, { client, call, body, fault }) {
  const items = [];
  const giveUp = new AbortController();
  const watch = setTimeout(() => giveUp.abort(), silence);
  const seen = (item) => {
    items.push(item);
    watch.refresh();
  };
  const headers = fault ? { "x-inference-lab-fault": fault } : {};
  let error = null;
  try {
    await CLIENTS[client]({ url, call, body, headers, signal: giveUp.signal, seen, describe });
  } catch (caught) {
    error = describe(caught);
  }
  clearTimeout(watch);
  return { items, error, gaveUp: giveUp.signal.aborted };
}

const request = JSON.parse(await text(process.stdin));
const reports = await Promise.all(request.cases.map((each) => run(request, each)));
process.stdout.write(JSON.stringify(reports));
