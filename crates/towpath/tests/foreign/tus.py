"""Uploads a file with tuspy, in each way that the client has.

Usage: tus.py ENDPOINT FILE. The token is in TOKEN. Prints a line of JSON for each way: its name, which is the id of the
item, too, and the offset that it began from or the error.
"""

import asyncio
import json
import os
import sys

from tusclient.client import TusClient
from tusclient.exceptions import TusCommunicationError
from tusclient.storage.filestorage import FileStorage

endpoint, file = sys.argv[1:]
storage = FileStorage(file + ".urls")
tusd = TusClient(endpoint, headers={"Authorization": f"Bearer {os.environ['TOKEN']}"})


def options(item, **more):
    metadata = {"filename": "Größe 東京.mp4", "filetype": "video/mp4", "title": "Ein Film — 東京"}
    metadata |= {"id": item} if item else {}
    return {"file_path": file, "metadata": metadata, "metadata_encoding": "utf-8", "chunk_size": 1 << 20} | more


def show(item, uploader):
    try:
        began = uploader.offset
        uploader.upload()
        print(json.dumps({"id": item, "began": began}))
    except TusCommunicationError as e:
        print(json.dumps({"id": item, "error": f"{e.status_code} {e.response_content.decode()}"}))


show("whole", tusd.uploader(**options("whole", chunk_size=1 << 30)))
show("parts/ü", tusd.uploader(**options("parts/ü")))
show("with-checksums", tusd.uploader(**options("with-checksums", upload_checksum=True)))
resumed = options("resumed", store_url=True, url_storage=storage)
tusd.uploader(**resumed).upload(stop_at=2 << 20)
show("resumed", tusd.uploader(**resumed))
asyncio.run(tusd.async_uploader(**options("async")).upload())
print(json.dumps({"id": "async", "began": 0}))
show("no-id", tusd.uploader(**options(None)))
show("stranger", TusClient(endpoint).uploader(**options("stranger")))
