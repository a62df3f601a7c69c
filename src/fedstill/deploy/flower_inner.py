"""What our own deployments use of Flower's inner modules, and where it is: the one file to look at for another version.

Flower promises nothing of these modules. `fedstill.engines.flower` refuses versions that were not tried. Each name is
imported when it is asked for, so that a site does not load the server's part.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import fedstill.engines.flower  # noqa: F401 - checks the version, and sets Flower's environment

PLACES = {
    "make_message": "flwr.app.message.message",
    "remove_content_from_message": "flwr.app.message.message",
    "ErrorCode": "flwr.common.constant",
    "NOOP_ACCOUNT_NAME": "flwr.common.constant",
    "NOOP_FLWR_AID": "flwr.common.constant",
    "SUPERLINK_NODE_ID": "flwr.common.constant",
    "SubStatus": "flwr.common.constant",
    "TIMESTAMP_HEADER": "flwr.common.constant",
    "message_from_proto": "flwr.common.serde",
    "message_to_proto": "flwr.common.serde",
    "ActivateNodeRequest": "flwr.proto.fleet_pb2",
    "DeactivateNodeRequest": "flwr.proto.fleet_pb2",
    "PullMessagesRequest": "flwr.proto.fleet_pb2",
    "PushMessagesRequest": "flwr.proto.fleet_pb2",
    "SendNodeHeartbeatRequest": "flwr.proto.heartbeat_pb2",
    "ObjectTree": "flwr.proto.message_pb2",
    "Node": "flwr.proto.node_pb2",
    "NodeInfo": "flwr.proto.node_pb2",
    "LinkState": "flwr.server.superlink.linkstate",
    "FLEET_HTTP_PUBLIC_KEY_HEADER": "flwr.supercore.constant",
    "FLEET_HTTP_SIGNATURE_HEADER": "flwr.supercore.constant",
    "NOOP_FEDERATION_ID": "flwr.supercore.constant",
    "TaskType": "flwr.supercore.constant",
    "now": "flwr.supercore.date",
    "get_all_nested_objects": "flwr.supercore.inflatable.inflatable_object",
    "get_object_id": "flwr.supercore.inflatable.inflatable_object",
    "get_object_tree": "flwr.supercore.inflatable.inflatable_object",
    "iterate_object_tree": "flwr.supercore.inflatable.inflatable_object",
    "no_object_id_recompute": "flwr.supercore.inflatable.inflatable_object",
    "make_confirm_message_received_fn_protobuf": "flwr.supercore.inflatable.inflatable_protobuf_utils",
    "make_pull_object_fn_protobuf": "flwr.supercore.inflatable.inflatable_protobuf_utils",
    "make_push_object_fn_protobuf": "flwr.supercore.inflatable.inflatable_protobuf_utils",
    "ObjectPullError": "flwr.supercore.inflatable.inflatable_utils",
    "ObjectPushError": "flwr.supercore.inflatable.inflatable_utils",
    "inflate_object_from_contents": "flwr.supercore.inflatable.inflatable_utils",
    "pull_and_inflate_object_from_tree": "flwr.supercore.inflatable.inflatable_utils",
    "push_objects": "flwr.supercore.inflatable.inflatable_utils",
    "RuntimeVersionHttpInterceptor": "flwr.supercore.interceptors.http.runtime_version",
    "add_headers": "flwr.supercore.interceptors.http.utils",
    "bytes_to_public_key": "flwr.supercore.primitives.asymmetric",
    "public_key_to_bytes": "flwr.supercore.primitives.asymmetric",
    "sign_message": "flwr.supercore.primitives.asymmetric",
    "verify_signature": "flwr.supercore.primitives.asymmetric",
    "ProtobufCall": "flwr.supercore.protobuf.client",
    "ProtobufClientInterceptor": "flwr.supercore.protobuf.client",
    "ProtobufRequestContext": "flwr.supercore.protobuf.client",
    "Run": "flwr.supercore.run",
    "TaskIdentity": "flwr.supercore.task_identity",
    "create_app": "flwr.superlink.main",
    "FleetHttpClient": "flwr.supernode.fleet_http_client",
    "NodeAuthHttpInterceptor": "flwr.supernode.node_auth_http_interceptor",
}


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PLACES[name]), name)
