"""moto's server, one request at a time.

moto handles requests in threads without any lock: a delete that meets a send loses the message, and two receives hand out one
message twice. Its long poll decides once, at its beginning, which message groups are in flight, and so breaks their order, as a visibility that runs out does.
Here a lock is held by each request, and a long poll is many short ones. What only costs time is left out: the counts of a queue's
messages, for who does not ask, and a copy of the whole table for each write of a transaction in DynamoDB.
"""

import collections
import copy
import sys
import threading
import time
import types

from moto.dynamodb import models as dynamodb
from moto.dynamodb.exceptions import MockValidationException
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.sqs.models import Queue, SQSBackend
from werkzeug.serving import WSGIRequestHandler, run_simple

lock = threading.RLock()
changes = collections.defaultdict(lambda: threading.Condition(lock))

short_poll = SQSBackend.receive_message


def receive_message(self, queue_name, count, wait_seconds_timeout, visibility_timeout, message_attribute_names=None):
    deadline = time.monotonic() + (wait_seconds_timeout or 0)
    while True:
        # moto frees a group while it passes the last of its messages that ran out, behind the first ones, and so reorders them.
        queue = self.get_queue(queue_name)
        for message in [message for message in queue.pending_messages if message.visible]:
            queue.pending_messages.discard(message)
        messages = short_poll(self, queue_name, count, 0, visibility_timeout, message_attribute_names)
        if messages or time.monotonic() >= deadline:
            return messages
        # At the latest then it is asked again: a visibility runs out without a word.
        changes[queue_name].wait(0.25)


def telling(change):
    def changed(self, queue_name, *args, **kwargs):
        try:
            return change(self, queue_name, *args, **kwargs)
        finally:
            changes[queue_name].notify_all()

    return changed


SQSBackend.send_message = telling(SQSBackend.send_message)
SQSBackend.delete_message = telling(SQSBackend.delete_message)
SQSBackend.change_message_visibility = telling(SQSBackend.change_message_visibility)


COUNTS = {
    "ApproximateNumberOfMessages": "approximate_number_of_messages",
    "ApproximateNumberOfMessagesDelayed": "approximate_number_of_messages_delayed",
    "ApproximateNumberOfMessagesNotVisible": "approximate_number_of_messages_not_visible",
}

other_attributes = SQSBackend.get_queue_attributes


def get_queue_attributes(self, queue_name, attribute_names):
    attributes = dict(other_attributes(self, queue_name, [name for name in attribute_names if name not in COUNTS]))
    for name, counter in COUNTS.items():
        if name in attribute_names or "All" in attribute_names:
            attributes[name] = getattr(self.get_queue(queue_name), counter)
    return attributes


SQSBackend.receive_message = receive_message
SQSBackend.get_queue_attributes = get_queue_attributes
Queue.BASE_ATTRIBUTES = [name for name in Queue.BASE_ATTRIBUTES if name not in COUNTS]


transact_write_items = dynamodb.DynamoDBBackend.transact_write_items


def transact_with_light_copies(self, transact_items):
    # A write puts another item in the place of the old one or takes it away, so a copy of the table needs the same items, not equal ones. An
    # update changes an item itself.
    updated = collections.defaultdict(list)
    for item in transact_items:
        if "Update" in item:
            updated[item["Update"]["TableName"]].append(item["Update"]["Key"])
    copies = {}

    def light(table):
        old = copy.copy(table)
        old.items = collections.defaultdict(dict)
        for hash_key, items in table.items.items():
            old.items[hash_key] = dict(items) if table.range_key_attr else items
        for key in updated[table.name]:
            try:
                hash_key, range_key = self.get_keys_value(table, key)
            except MockValidationException:  # moto will say so itself
                continue
            if table.range_key_attr and range_key in old.items.get(hash_key, {}):
                old.items[hash_key][range_key] = copy.deepcopy(old.items[hash_key][range_key])
            elif not table.range_key_attr and hash_key in old.items:
                old.items[hash_key] = copy.deepcopy(old.items[hash_key])
        return old

    def deepcopy(value, memo=None):
        if not isinstance(value, dynamodb.Table):
            return copy.deepcopy(value, memo)
        if value.name not in copies:
            copies[value.name] = light(value)
        return copies[value.name]

    dynamodb.copy = types.SimpleNamespace(deepcopy=deepcopy)
    try:
        return transact_write_items(self, transact_items)
    finally:
        dynamodb.copy = copy


dynamodb.DynamoDBBackend.transact_write_items = transact_with_light_copies


class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept

    def log_request(self, *args):
        pass


def main():
    moto = DomainDispatcherApplication(create_backend_app)

    def one_at_a_time(environ, start_response):
        with lock:
            return moto(environ, start_response)

    run_simple(sys.argv[1], int(sys.argv[2]), one_at_a_time, threaded=True, request_handler=Handler)


main()
