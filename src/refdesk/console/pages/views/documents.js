// @ts-check
/** Documents and collections: what is there, what is on its way, and how to add and delete. */

import {h, replace} from "../dom.js";
import {pageHeader} from "../widgets.js";
import {AddPanel} from "./documents/adding.js";
import {CollectionList} from "./documents/collections.js";
import {uploads} from "./documents/queue.js";
import {DocumentTable, EVERYTHING} from "./documents/table.js";
import {UploadList} from "./documents/uploads.js";

export const title = "Documents";

/** @param {any} context */
export function view(context) {
  uploads.ownedBy(`${context.me.tenant}/${context.me.user}`);
  const collections = new CollectionList(context, () => showChosen());
  const documents = new DocumentTable(context, collections.about);
  const adding = context.me.may_write ? new AddPanel(context, collections) : null;
  collections.choose(context.params.collection ?? "");

  const showChosen = () => {
    adding?.draw();
    replace(documents.heading, collections.current?.name || collections.chosen || EVERYTHING);
  };
  const page = h(
    "div",
    {class: "documents-view"},
    pageHeader("Documents", "What agents can search here. Documents are converted and indexed in the background."),
    h(
      "div",
      {class: "documents-layout"},
      collections.element,
      h("div", {class: "documents-main"}, adding?.element, new UploadList(context.signal).element, documents.element),
    ),
    adding?.cover,
  );
  adding?.acceptDrops(page);
  follow(context, documents, collections);
  collections.load();
  documents.open(collections.chosen, "");
  return page;
}

/** Keep up with the desk. @param {any} context @param {DocumentTable} documents @param {CollectionList} collections */
function follow(context, documents, collections) {
  const lookAgain = () => {
    collections.loadSoon();
    documents.loadSoon();
  };
  context.events({
    documents: (/** @type {{documents: any[]}} */ data) => documents.hear(data.documents),
    collections: lookAgain,
    // What was missed while the stream was away.
    open: lookAgain,
  });
}
