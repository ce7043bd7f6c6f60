#!/usr/bin/env python3
"""The S3 and the EC2 of moto on 127.0.0.1, as the storage of drivers:
moto_server.py PORT [INSTANCE[,ZONE]]... [--key ID=SECRET] [--list-delay SECONDS]

INSTANCE is the ID of an EC2 instance in ZONE, by default us-east-1a, to which volumes can be attached.
With --key, EC2 accepts only requests that are signed with this access key.
With --list-delay, DescribeVolumes omits a volume for this time after its creation.
GET /volumes prints a line for each bucket, each EBS volume and each snapshot, except those that exist from the
start: the root volumes of the instances, and the snapshots of images.

moto 5.2.5 lacks these rules of EC2, which are added here:
- CreateVolume with a repeated ClientToken returns the first volume, also if it is deleted, and is an error if the
  other parameters differ. moto ignores the token.
- CreateVolume in a zone that does not exist is an error. moto creates a volume without a zone.
- AttachVolume of an attached volume is an error. moto replaces the attachment.
- ModifyVolume never makes a volume smaller. moto does.
- The type of an answer of EC2 is XML. moto says HTML.
- A signature covers the body as it was sent. moto encodes the parsed form again.
"""

import argparse
import io
import threading
from datetime import timedelta

from moto import settings
from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends, instances
from moto.ec2.responses.elastic_block_store import ElasticBlockStore
from moto.iam.access_control import IAMRequest
from moto.iam.models import AccessKey, iam_backends
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from moto.s3.models import s3_backends
from werkzeug.serving import run_simple

ACCOUNT = "123456789012"
REGION = "us-east-1"
ZONE = "us-east-1a"
POLICY = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "ec2:*", "Resource": "*"}]}'

backend = ec2_backends[ACCOUNT][REGION]
# Parameters and volume of the first request with a ClientToken.
first_requests = {}
create_volume_of_moto = ElasticBlockStore.create_volume
attach_volume_of_moto = ElasticBlockStore.attach_volume
modify_volume_of_moto = ElasticBlockStore.modify_volume
describe_volumes_of_moto = backend.describe_volumes
signed_request_of_moto = IAMRequest._create_aws_request


def create_volume(response):
    token = response._get_param("ClientToken")
    # Also rejects a dry run, which creates no volume.
    response.error_on_dryrun()
    zone = response._get_param("AvailabilityZone")
    if zone is not None and backend.get_zone_by_name(zone) is None:
        raise EC2ClientError("InvalidZone.NotFound", f"The zone '{zone}' does not exist.")
    if token is None:
        return create_volume_of_moto(response)
    # A client may send the tags in any order.
    parameters = {**response.params, "TagSpecifications": response._parse_tag_specification()}
    if token in first_requests:
        first_parameters, volume = first_requests[token]
        if parameters != first_parameters:
            raise EC2ClientError("IdempotentParameterMismatch", f"The token {token} has other parameters.")
        return ActionResult(volume)
    result = create_volume_of_moto(response)
    first_requests[token] = (parameters, result.result)
    return result


def attach_volume(response):
    volume = backend.get_volume(response._get_param("VolumeId"))
    if volume.attachment is not None:
        instance = volume.attachment.instance.id
        raise EC2ClientError("VolumeInUse", f"{volume.id} is already attached to an instance: {instance}")
    return attach_volume_of_moto(response)


def modify_volume(response):
    volume = backend.get_volume(response._get_param("VolumeId"))
    if int(response._get_param("Size") or volume.size) < volume.size:
        raise EC2ClientError("InvalidParameterValue", "New size cannot be smaller than existing size")
    return modify_volume_of_moto(response)


def run_instance(name, zone):
    instances.random_instance_id = lambda: name
    backend.run_instances(
        "ami-12c6146b",
        1,
        None,
        [],
        instance_type="m5.large",
        is_instance_type_default=False,
        placement=zone,
        region_name=REGION,
    )


def require_key(key_id, secret, application):
    """Creates a user with this access key, and lets moto check every later request."""
    iam = iam_backends[ACCOUNT]["aws"]
    key = AccessKey("driver", "AKIA", ACCOUNT)
    key.access_key_id, key.secret_access_key = key_id, secret
    iam.create_user(REGION, "driver").access_keys.append(key)
    iam.put_user_policy("driver", "ec2", POLICY)
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
    body = b""

    def signed_request(request):
        request._body = body
        return signed_request_of_moto(request)

    def application_with_body(environ, start_response):
        nonlocal body
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        return application({**environ, "wsgi.input": io.BytesIO(body)}, start_response)

    IAMRequest._create_aws_request = signed_request
    return application_with_body


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("instances", nargs="*")
    parser.add_argument("--key")
    parser.add_argument("--list-delay", type=float, default=0)
    arguments = parser.parse_args()
    for instance in arguments.instances:
        name, _, zone = instance.partition(",")
        run_instance(name, zone or ZONE)
    existing = {*backend.volumes, *backend.snapshots}
    delay = timedelta(seconds=arguments.list_delay)
    backend.describe_volumes = lambda volume_ids=None, filters=None: [
        volume
        for volume in describe_volumes_of_moto(volume_ids, filters)
        if utcnow() - volume.create_time >= delay
    ]
    ElasticBlockStore.create_volume = create_volume
    ElasticBlockStore.attach_volume = attach_volume
    ElasticBlockStore.modify_volume = modify_volume
    moto = DomainDispatcherApplication(create_backend_app)
    if arguments.key:
        moto = require_key(*arguments.key.split("=", 1), moto)
    # moto's state is not made for concurrent requests.
    lock = threading.Lock()

    def application(environ, start_response):
        def start_xml_response(status, headers, exc_info=None):
            xml = [(name, value.replace("text/html", "text/xml")) for name, value in headers]
            return start_response(status, xml, exc_info)

        is_query = (environ["REQUEST_METHOD"], environ["PATH_INFO"]) == ("POST", "/")
        with lock:
            if environ["PATH_INFO"] != "/volumes":
                return list(moto(environ, start_xml_response if is_query else start_response))
            stored = [*s3_backends[ACCOUNT]["aws"].buckets, *backend.volumes, *backend.snapshots]
        start_response("200 OK", [("Content-Type", "text/plain")])
        return ["".join(f"{name}\n" for name in stored if name not in existing).encode()]

    run_simple("127.0.0.1", arguments.port, application, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
