"""A hook of the documentation build: pages from docstrings, one per package, and one of all keys of run specs."""

import importlib
import inspect

from mkdocs.structure.files import File

PACKAGES = (
    "data",
    "privacy",
    "distributions",
    "inference",
    "latent_class",
    "verifier",
    "bloom",
    "mvg",
    "ide",
    "report",
    "runs",
    "errors",
)


def on_files(files, config):
    """Add the pages to the build; they are not written to the source."""
    for package in PACKAGES:
        files.append(File.generated(config, f"api/{package}.md", content=page(package)))
    files.append(File.generated(config, "api/spec_keys.md", content=spec_keys()))
    return files


def spec_keys():
    """Return the Markdown of the page of all keys, system by system."""
    from dpbayes.runs.registry import SYSTEMS
    from dpbayes.runs.spec import spec_sections

    parts = ["# Keys of run specs", "", "`dpbayes keys SYSTEM` prints the same in a terminal.", ""]
    for system in SYSTEMS:
        parts += [f"## {system}", ""]
        for section in spec_sections(system):
            heading = f"`{section.heading}`" if section.heading else "Before the first table"
            parts += [f"### {heading}{'' if section.required else ' (optional)'}", "", section.meaning, ""]
            parts += ["| key | takes | | meaning |", "|---|---|---|---|"]
            for key in section.keys:
                cells = (f"`{key.name}`", key.takes, key.rule, key.meaning)
                parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
            parts.append("")
    return "\n".join(parts)


def page(package):
    """Return the Markdown of a package's page: a directive for every public name, at the place of its definition."""
    name = f"dpbayes.{package}"
    module = importlib.import_module(name)
    lines = [f"# {name}", "", (module.__doc__ or "").split("\n\n")[0], ""]
    for public in module.__all__:
        thing = getattr(module, public)
        if inspect.ismodule(thing):
            lines += [f"::: {thing.__name__}", "    options:", "      show_root_toc_entry: true", ""]
            continue
        home = getattr(thing, "__module__", None) or name
        documented = (inspect.isclass(thing) or inspect.isfunction(thing)) and home.startswith("dpbayes")
        # A type alias or a constant stands where it is assigned, which only its value's module would say.
        lines += [f"::: {home}.{public}", ""] if documented else [f"### {public}", "", f"`{name}.{public}`", ""]
    return "\n".join(lines)
