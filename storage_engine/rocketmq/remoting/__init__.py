"""An administration client for live brokers and name servers: small, strict, bounded in time and memory.

``admin.BrokerAdmin`` asks one broker, ``name_server.NameServers`` finds brokers. Nothing here touches files.
"""
