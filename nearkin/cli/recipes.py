"""`nearkin recipes`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from nearkin.cli.options import Overrides
from nearkin.cli.output import show_table

recipes_app = typer.Typer(help="Recipes: list them, show one, or print the JSON schema.")


@recipes_app.callback(invoke_without_command=True)
def list_command(context: typer.Context) -> None:
    """List the built-in recipes."""
    if context.invoked_subcommand is not None:
        return
    from nearkin.recipe import list_recipes

    show_table(("recipe", "what it is"), list_recipes().items())


@recipes_app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(help="Name or YAML file of a recipe.")],
    overrides: Overrides = None,
    data: Annotated[
        str | None, typer.Option(help="Name of a data set in the catalogue, for recipes whose settings depend on it.")
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
