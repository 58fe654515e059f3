// Uploads a file with tus-js-client, in each way that the client has.
//
// Usage: tus.mjs ENDPOINT FILE. The token is in TOKEN. Prints a line of JSON for each way: its name, which is the id of the
// item, too, and the offset that it began from or the error.

import { createReadStream } from "node:fs";
import { createRequire } from "node:module";
import { PassThrough } from "node:stream";

const tus = createRequire(import.meta.url)("tus-js-client");
const [endpoint, file] = process.argv.slice(2);
const urlStorage = new tus.FileUrlStorage(`${file}.urls`);

/** Runs one upload to its end, its error, or what `until` says. */
function upload(id, options, until = () => false, source = createReadStream(file)) {
  return new Promise((resolve, reject) => {
    let began;
    const upload = new tus.Upload(source, {
      endpoint,
      headers: { Authorization: `Bearer ${process.env.TOKEN}` },
      metadata: { id, filename: "Größe 東京.mp4", filetype: "video/mp4", title: "Ein Film — 東京" },
      chunkSize: 1 << 20,
      retryDelays: null,
      urlStorage,
      onProgress: (sent) => (began ??= sent),
      onChunkComplete: (_, accepted) => until(accepted, upload) && resolve(),
      onError: reject,
      onSuccess: () => resolve(began),
      ...options,
    });
    // The client's fingerprint is of the file, which all these uploads have in common.
    upload.findPreviousUploads().then((uploads) => {
      const previous = uploads.find(({ metadata }) => metadata.id === id);
      if (previous) upload.resumeFromPreviousUpload(previous);
      upload.start();
    });
  });
}

async function show(id, ...way) {
  const result = await upload(id, ...way).then((began) => ({ began }), (error) => ({ error: error.message }));
  console.log(JSON.stringify({ id, ...result }));
}

await show("whole", { chunkSize: Infinity });
await show("parts/ü", {});
await show("tunnelled", { overridePatchMethod: true });
await show("with-creation", { uploadDataDuringCreation: true });
await show("small-with-creation", { uploadDataDuringCreation: true, chunkSize: Infinity });
await upload("resumed", {}, (accepted, upload) => accepted >= 2 << 20 && upload.abort());
await show("resumed", {});
await upload("ended", {}, (accepted, upload) => accepted >= 2 << 20 && upload.abort(true));
await show("parallel", { parallelUploads: 2, metadataForPartialUploads: { id: "parallel" } });
// Of a file the client knows the length; of what comes through a pipe it does not.
const piped = createReadStream(file).pipe(new PassThrough());
await show("deferred", { uploadLengthDeferred: true }, undefined, piped);
await show("draft", { protocol: "ietf-draft-05" });
await show("stranger", { headers: {} });
