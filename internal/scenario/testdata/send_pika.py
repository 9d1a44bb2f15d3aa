"""A producer that knows nothing of Oncemill: pika, headers of every AMQP type, no message id, each message sent twice.

Reads from stdin one JSON object a line: {"topic", "headers", "body"}; publishes to the exchange of that name at argv[1].
"""

import json
import sys

import pika

connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
channel.confirm_delivery()
for line in sys.stdin:
    message = json.loads(line)
    for _ in range(2):
        channel.basic_publish(
            exchange=message["topic"],
            routing_key="",
            body=message["body"],
            properties=pika.BasicProperties(headers=message["headers"], delivery_mode=2),
            mandatory=True,
        )
connection.close()
