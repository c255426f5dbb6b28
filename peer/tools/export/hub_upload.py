"""`homefires export --push`: uploads a folder to huggingface.co with the user's own login."""

from __future__ import annotations

from pathlib import Path

from httpx2 import HTTPError
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from dht.errors import BadInput, Unreachable
from peer.schema.spec_fields import HUB_NAME

LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


def require_login(name: str) -> None:
    """Before an hour of work: `name` is OWNER/NAME, and this machine has a login. Raises BadInput."""
    if not HUB_NAME.fullmatch(name):
        raise BadInput(f"--push is {name!r}; name OWNER/NAME at huggingface.co")
    if get_token() is None:
        raise BadInput(f"--push {name} needs a login at huggingface.co; {LOGIN}")


def push(folder: Path, name: str, message: str) -> str:
    """Have all of `folder` in the repository `name`, which is made, and public, if it is not there; where it is then.

    Raises BadInput where the login does not allow it, Unreachable where nobody answers.
    """
    api = HfApi()
    try:
        api.create_repo(name, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except (HfHubHTTPError, HFValidationError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BadInput(f"huggingface.co refuses {name} ({reason}); it is in {folder} all the same; {LOGIN}") from error
    except (OSError, HTTPError) as error:
        raise Unreachable(f"huggingface.co cannot be reached; {folder} can be pushed later") from error
    return f"https://huggingface.co/{name}"
