"""A producer that knows nothing of Oncemill: confluent-kafka, no record key, each message sent twice.

Reads from stdin one JSON object a line: {"topic", "headers", "body"}; sends to the brokers at argv[1]. Headers of Kafka are
bytes: an integer is sent as its eight bytes, a table as JSON, null as null.
"""

import json
import struct
import sys

from confluent_kafka import Producer


def encode(value):
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return struct.pack(">q", value)
    return json.dumps(value).encode()


def delivered(err, _):
    if err is not None:
        sys.exit(f"not delivered: {err}")


producer = Producer({"bootstrap.servers": sys.argv[1], "acks": "all"})
for line in sys.stdin:
    message = json.loads(line)
    for _ in range(2):
        headers = [(name, encode(value)) for name, value in message["headers"].items()]
        producer.produce(message["topic"], message["body"], headers=headers, on_delivery=delivered)
left = producer.flush(30)
if left:
    sys.exit(f"{left} messages are not confirmed")
