"""Subscribes to a topic with flask-websub, a WebSub subscriber that shares nothing with towpath.

Usage: websub.py TOPIC FOLDER. The hub is discovered from the topic. Prints a line of JSON for each success and delivery.
Unsubscribes at the end of its input, and ends when the hub has verified that.
"""

import json
import sys
import threading

from flask import Flask
from flask_websub.subscriber import SQLite3SubscriberStorage, SQLite3TempSubscriberStorage, Subscriber, discover
from werkzeug.serving import make_server

topic, folder = sys.argv[1:]
app = Flask(__name__)
subscriber = Subscriber(
    SQLite3SubscriberStorage(folder + "/subscriptions"), SQLite3TempSubscriberStorage(folder + "/requests")
)
app.register_blueprint(subscriber.build_blueprint(url_prefix="/callbacks"))
server = make_server("127.0.0.1", 0, app, threaded=True)
app.config["SERVER_NAME"] = f"127.0.0.1:{server.server_port}"
unsubscribed = threading.Event()


def say(**fields):
    print(json.dumps(fields), flush=True)


def succeeded(topic, callback, mode):
    say(mode=mode, topic=topic)
    if mode == "unsubscribe":
        unsubscribed.set()


subscriber.add_success_handler(succeeded)
subscriber.add_error_handler(lambda topic, callback, reason: say(error=str(reason), topic=topic))
subscriber.add_listener(lambda topic, callback, body: say(topic=topic, body=body.decode()))
threading.Thread(target=server.serve_forever, daemon=True).start()
with app.app_context():
    callback = subscriber.subscribe(**discover(topic))
    sys.stdin.read()
    subscriber.unsubscribe(callback)
if not unsubscribed.wait(60):
    sys.exit("the hub does not verify the end")
