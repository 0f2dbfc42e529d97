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
) -> None:
    """Print a recipe with inherited settings and defaults."""
    from nearkin.recipe import load_recipe

    print(load_recipe(name, overrides or []).to_yaml(), end="")


@recipes_app.command("schema")
def schema_command() -> None:
    """Print the JSON schema of recipe files, for editors."""
    from nearkin.recipe import recipe_schema

    print(json.dumps(recipe_schema(), indent=2))
