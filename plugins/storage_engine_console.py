"""The plugin for an Airflow that has this checkout on its path. Where the provider is installed Airflow finds
the plugin by its entry point, and this file has none: two would be one too many."""

from importlib.metadata import entry_points

if not any(one.value.startswith("storage_engine.plugins.") for one in entry_points(group="airflow.plugins")):
    from storage_engine.plugins.storage_engine import StorageEnginePlugin

    __all__ = ["StorageEnginePlugin"]
