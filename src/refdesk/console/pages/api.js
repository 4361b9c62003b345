// @ts-check
/**
 * HTTP client of the console. Every call passes the same policies as a call by an agent.
 *
 *   tool(name, args, {signal})     call a tool: its result {content, structuredContent, ...}; throws an error result
 *   action(name, params, {signal}) POST /api/console/{name}: its JSON object
 *   events(handlers) -> close()    handlers {documents, collections, servers, metrics, open, away} take the data.
 *                                  All subscribers share one stream, which reconnects by itself. `open` is called after
 *                                  every connect, so that a view can fetch what it may have missed
 *   upload(file, onProgress)       {uri, size}; onProgress(share) from 0 to 1
 *   resource(uri, {signal})        the text of an MCP resource
 *   ApiError                       {status, code, message, hint, data}; status 0: no response
 *   getKey, setKey(key | null)     API key, kept for this tab only
 *   onUnauthorized(callback)       `callback(error)` is called on 401; it resolves to true if there is a new key to try
 *   onUnreachable(callback)        `callback()` is called when the server doesn't respond
 *   reconnect()                    reopens the event stream now instead of after its backoff
 *   isReachable()                  whether the server responds
 *
 * A call aborted through its signal throws the browser's AbortError; check with `isAbort(error)`.
 */

import {EventStream} from "./stream.js";

const KEY = "refdesk.key";
const API = new URL("../api/", import.meta.url);
const MCP = new URL("../mcp", import.meta.url);
const HEALTH = new URL("../health", import.meta.url);

/** @type {(error: ApiError) => Promise<boolean>} */
let askForKey = async () => false;
let notifyUnreachable = () => {};

export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {{code?: string | number, message?: string, data?: any}} error
   */
  constructor(status, error) {
    super(error.message || `The server returned ${status}.`);
    this.name = "ApiError";
    this.status = status;
    this.code = error.code ?? status;
    this.data = error.data ?? {};
    this.hint = String(this.data?.hint ?? "");
  }
}

/** @typedef {{signal?: AbortSignal}} Options */

/** @param {string} name @param {object} args @param {Options} [options] @returns {Promise<any>} */
export async function tool(name, args, options) {
  const result = await post(`tools/${encodeURIComponent(name)}`, args, options);
  if (result.isError) throw new ApiError(200, {code: "tool", message: joinText(result), data: result});
  return result;
}

/** @param {string} name @param {object} [params] @param {Options} [options] @returns {Promise<any>} */
export function action(name, params = {}, options) {
  return post(`console/${encodeURIComponent(name)}`, params, options);
}

/** @param {string} uri @param {Options} [options] @returns {Promise<string>} */
export async function resource(uri, options = {}) {
  const message = {jsonrpc: "2.0", id: 1, method: "resources/read", params: {uri}};
  const headers = {Accept: "application/json, text/event-stream"};
  const answer = await send(MCP, {...jsonRequest(message, headers), signal: options.signal});
  if (answer.error) throw new ApiError(200, answer.error);
  return answer.result.contents.map((/** @type {{text?: string}} */ part) => part.text ?? "").join("");
}

/** @param {Record<string, (data?: any) => void>} handlers @returns {() => void} */
export function events(handlers) {
  return stream.subscribe(handlers);
}

const stream = new EventStream(
  (signal) => fetch(new URL("console/events", API), {headers: authHeaders(), signal}),
  () => notifyUnreachable(),
);

/**
 * @param {File} file
 * @param {(share: number) => void} [onProgress]
 * @returns {Promise<{uri: string, size: number}>}
 */
export function upload(file, onProgress = () => {}) {
  // fetch has no upload progress; XMLHttpRequest does.
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", new URL(`uploads?name=${encodeURIComponent(file.name)}`, API));
    for (const [name, value] of Object.entries(authHeaders())) request.setRequestHeader(name, value);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.responseType = "text";
    request.upload.onprogress = (event) => event.lengthComputable && onProgress(event.loaded / event.total);
    request.onerror = () => reject(createUnreachableError());
    request.onload = () => {
      const answer = parseBody(request.responseText);
      if (request.status < 300) resolve(answer);
      else reject(new ApiError(request.status, extractError(answer)));
    };
    request.send(file);
  });
}

export function getKey() {
  return sessionStorage.getItem(KEY);
}

/** @param {string | null} key */
export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  stream.restart();
}

/** @param {typeof askForKey} callback */
export function onUnauthorized(callback) {
  askForKey = callback;
}

/** @param {() => void} callback */
export function onUnreachable(callback) {
  notifyUnreachable = callback;
}

export function reconnect() {
  if (!stream.isOpen) stream.restart();
}

export async function isReachable() {
  try {
    return (await fetch(HEALTH, {cache: "no-store"})).status < 500;
  } catch {
    return false;
  }
}

/** @param {unknown} error */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/** @param {{content?: {text?: string}[]}} result */
function joinText(result) {
  return (result.content ?? []).map((part) => part.text ?? "").join("\n");
}

/** @param {string} path @param {object} body @param {Options} [options] */
function post(path, body, options = {}) {
  return send(new URL(path, API), {...jsonRequest(body), signal: options.signal});
}

/** @param {object} body @param {Record<string, string>} [headers] */
function jsonRequest(body, headers = {}) {
  return {method: "POST", body: JSON.stringify(body), headers: {"Content-Type": "application/json", ...headers}};
}

/**
 * @param {URL} url
 * @param {RequestInit & {headers: Record<string, string>}} request
 * @returns {Promise<any>}
 */
async function send(url, request) {
  const response = await attempt(url, request);
  const answer = parseBody(await response.text());
  if (response.ok) return answer;
  const error = new ApiError(response.status, extractError(answer));
  if (response.status === 401 && (await askForKey(error))) return send(url, request);
  throw error;
}

/** @param {URL} url @param {RequestInit & {headers: Record<string, string>}} request */
async function attempt(url, request) {
  try {
    return await fetch(url, {...request, headers: {...request.headers, ...authHeaders()}});
  } catch (error) {
    if (isAbort(error)) throw error;
    notifyUnreachable();
    throw createUnreachableError();
  }
}

/** @param {any} answer requests rejected early have only a `detail` */
function extractError(answer) {
  return answer.error ?? {message: answer.detail};
}

function createUnreachableError() {
  return new ApiError(0, {code: "away", message: "Refdesk is not responding."});
}

/** @returns {Record<string, string>} */
function authHeaders() {
  const key = getKey();
  return key ? {Authorization: `Bearer ${key}`} : {};
}

/** @param {string} body @returns {any} a proxy's error page isn't JSON */
function parseBody(body) {
  try {
    return JSON.parse(body);
  } catch {
    return {error: {message: body.slice(0, 300)}};
  }
}
