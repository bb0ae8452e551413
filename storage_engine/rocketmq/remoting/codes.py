"""Numbers of the requests that administration makes (RequestCode) and of the answers (ResponseCode)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PULL_MESSAGE: Final = 11
UPDATE_BROKER_CONFIG: Final = 25
GET_BROKER_CONFIG: Final = 26
GET_BROKER_RUNTIME_INFO: Final = 28
GET_MAX_OFFSET: Final = 30
GET_MIN_OFFSET: Final = 31
GET_EARLIEST_MESSAGE_STORE_TIME: Final = 32
VIEW_MESSAGE_BY_ID: Final = 33
GET_ALL_CONSUMER_OFFSET: Final = 43
GET_ROUTE_INFO_BY_TOPIC: Final = 105
GET_BROKER_CLUSTER_INFO: Final = 106
GET_ALL_SUBSCRIPTION_GROUP_CONFIG: Final = 201
GET_TOPIC_STATS_INFO: Final = 202
GET_CONSUMER_CONNECTION_LIST: Final = 203
GET_CONSUME_STATS: Final = 208
CLEAN_EXPIRED_CONSUME_QUEUE: Final = 306
DELETE_EXPIRED_COMMITLOG: Final = 329
GET_TOPIC_CONFIG: Final = 351
GET_BROKER_HA_STATUS: Final = 907
CONTROLLER_GET_REPLICA_INFO: Final = 1004

NAMES: Final[Mapping[int, str]] = {
    PULL_MESSAGE: "pull messages",
    UPDATE_BROKER_CONFIG: "update the broker's config",
    GET_BROKER_CONFIG: "broker's config",
    GET_BROKER_RUNTIME_INFO: "broker's runtime info",
    GET_MAX_OFFSET: "max offset of a queue",
    GET_MIN_OFFSET: "min offset of a queue",
    GET_EARLIEST_MESSAGE_STORE_TIME: "time of a queue's earliest message",
    VIEW_MESSAGE_BY_ID: "message at a physical offset",
    GET_ALL_CONSUMER_OFFSET: "all consumer offsets",
    GET_ROUTE_INFO_BY_TOPIC: "route of a topic",
    GET_BROKER_CLUSTER_INFO: "clusters and brokers",
    GET_ALL_SUBSCRIPTION_GROUP_CONFIG: "all consumer groups",
    GET_TOPIC_STATS_INFO: "stats of a topic",
    GET_CONSUMER_CONNECTION_LIST: "connected members of a group",
    GET_CONSUME_STATS: "consume stats of a group",
    CLEAN_EXPIRED_CONSUME_QUEUE: "clean expired consume queues",
    DELETE_EXPIRED_COMMITLOG: "delete expired commitlog files",
    GET_TOPIC_CONFIG: "config of a topic",
    GET_BROKER_HA_STATUS: "state of a broker's replicas",
    CONTROLLER_GET_REPLICA_INFO: "a controller's choice of the master",
}

SUCCESS: Final = 0
SYSTEM_ERROR: Final = 1
SYSTEM_BUSY: Final = 2
REQUEST_CODE_NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 16
TOPIC_NOT_EXIST: Final = 17
PULL_NOT_FOUND: Final = 19
PULL_RETRY_IMMEDIATELY: Final = 20
PULL_OFFSET_MOVED: Final = 21
SUBSCRIPTION_GROUP_NOT_EXIST: Final = 26
CONSUMER_NOT_ONLINE: Final = 206

NOT_BEGUN: Final = frozenset({SYSTEM_BUSY, REQUEST_CODE_NOT_SUPPORTED, NO_PERMISSION})
"""Said before a request is looked at: nothing was done."""

REMEDIES: Final[Mapping[int, str]] = {
    SYSTEM_BUSY: "Try again when the broker is less busy.",
    REQUEST_CODE_NOT_SUPPORTED: "Check that this is a broker of RocketMQ 4.9 or 5, no name server or proxy.",
    NO_PERMISSION: (
        "Check access key and secret key, and that this user may do it (a broker's super user may do all)."
    ),
    SUBSCRIPTION_GROUP_NOT_EXIST: "Name a consumer group that the broker has.",
}
