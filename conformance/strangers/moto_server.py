#!/usr/bin/env python3
"""The S3 and the EC2 of moto on 127.0.0.1, as the storage of CSI drivers: moto_server.py PORT [INSTANCE]

INSTANCE is the ID of an EC2 instance in us-east-1a, to which volumes can be attached.
GET /volumes prints a line for each bucket and each EBS volume, except the root volume of the instance.

moto ignores the ClientToken of CreateVolume. Here, as on EC2, a repeated token returns the first volume,
and is an error if the other parameters differ.
"""

import sys
import threading

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import ec2_backends, instances
from moto.ec2.responses.elastic_block_store import ElasticBlockStore
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

backend = ec2_backends[ACCOUNT][REGION]
# Parameters and volume of the first request with a ClientToken.
first_requests = {}
create_volume_without_token = ElasticBlockStore.create_volume


def create_volume(response):
    token = response._get_param("ClientToken")
    # Also rejects a dry run, which creates no volume.
    response.error_on_dryrun()
    if token is None:
        return create_volume_without_token(response)
    # A client may send the tags in any order.
    parameters = {**response.params, "TagSpecifications": response._parse_tag_specification()}
    if token in first_requests:
        first_parameters, volume = first_requests[token]
        if parameters != first_parameters:
            raise EC2ClientError("IdempotentParameterMismatch", f"The token {token} has other parameters.")
        return ActionResult(volume)
    result = create_volume_without_token(response)
    first_requests[token] = (parameters, result.result)
    return result


def run_instance(name):
    """Starts an instance, and returns the IDs of its volumes."""
    instances.random_instance_id = lambda: name
    backend.run_instances(
        "ami-12c6146b",
        1,
        None,
        [],
        instance_type="m5.large",
        is_instance_type_default=False,
        placement=ZONE,
        region_name=REGION,
    )
    return set(backend.volumes)


def main():
    port = int(sys.argv[1])
    root_volumes = run_instance(sys.argv[2]) if len(sys.argv) > 2 else set()
    ElasticBlockStore.create_volume = create_volume
    moto = DomainDispatcherApplication(create_backend_app)
    # moto's state is not made for concurrent requests.
    lock = threading.Lock()

    def application(environ, start_response):
        with lock:
            if environ["PATH_INFO"] != "/volumes":
                return list(moto(environ, start_response))
            names = [*s3_backends[ACCOUNT]["aws"].buckets, *(set(backend.volumes) - root_volumes)]
        start_response("200 OK", [("Content-Type", "text/plain")])
        return ["".join(f"{name}\n" for name in names).encode()]

    run_simple("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
