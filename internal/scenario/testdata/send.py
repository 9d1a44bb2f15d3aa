"""A producer that knows nothing of Oncemill: boto3, no attribute of ours, an identity by the deduplication id alone.

Reads from stdin one JSON object a line: {"id", "group", "body", "headers"}; sends each to every queue whose name begins with argv[3].
"""

import json
import sys

import boto3

endpoint, region, prefix = sys.argv[1:4]
sqs = boto3.client("sqs", endpoint_url=endpoint, region_name=region)
queues = sqs.list_queues(QueueNamePrefix=prefix)["QueueUrls"]
for line in sys.stdin:
    message = json.loads(line)
    for queue in queues:
        sqs.send_message(
            QueueUrl=queue,
            MessageBody=message["body"],
            MessageGroupId=message["group"],
            MessageDeduplicationId=message["id"],
            MessageAttributes={
                name: {"DataType": "String", "StringValue": value} for name, value in (message.get("headers") or {}).items()
            },
        )
