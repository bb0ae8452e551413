"""The plugin for an Airflow that has this checkout on its path.

If the provider is installed, Airflow finds the plugin by its entry point. Then this file defines none.
"""

from importlib.metadata import entry_points

points = entry_points(group="airflow.plugins")
if not any(point.value.startswith("storage_engine.plugins.") for point in points):
    from storage_engine.plugins.storage_engine import StorageEnginePlugin

    __all__ = ["StorageEnginePlugin"]
