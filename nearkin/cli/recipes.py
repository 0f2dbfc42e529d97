"""`nearkin recipes`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

recipes_app = typer.Typer(help="Recipes: list them, show one, or print the JSON schema.")


@recipes_app.callback(invoke_without_command=True)
def list_command(context: typer.Context) -> None:
    """List the built-in recipes."""
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console
    from rich.table import Table

    from nearkin.recipe import list_recipes

    table = Table("recipe", "what it is", box=None)
    for name, line in list_recipes().items():
        table.add_row(name, line)
    Console(highlight=False, markup=False).print(table)


@recipes_app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help="Name or YAML file of a recipe.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting, e.g. training.lr=1e-4; repeatable.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="Name of a data set in the catalogue, for recipes whose settings depend on it."),
    ] = None,
) -> None:
    """Print a recipe with inherited settings and defaults."""
    from nearkin.data.catalogue import catalogue
    from nearkin.recipe import load_recipe, settings_by_data

    if data is not None:
        catalogue.get(data)
    print(load_recipe(name, overrides or [], data).to_yaml(), end="")
    if data is not None:
        return
    for one, settings in settings_by_data(name, overrides or []).items():
        print(f"# {one}: {', '.join(f'{key}={json.dumps(value)}' for key, value in settings.items())}")


@recipes_app.command("schema")
def schema_command() -> None:
    """Print the JSON schema of recipe files, for editors."""
    from nearkin.recipe import recipe_schema

    print(json.dumps(recipe_schema(), indent=2))
