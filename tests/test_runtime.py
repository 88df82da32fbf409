"""The compilation cache: which folder it is in, and who may not bring one."""

import os
import stat
import subprocess
import sys

import jax
import pytest

from jaxscale import stored
from jaxscale.runtime import use_compilation_cache

OPTIONS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture(autouse=True)
def restore(monkeypatch, tmp_path):
    before = {option: getattr(jax.config, option) for option in OPTIONS}
    for name in ("JAXSCALE_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    stored.keep_in(None)
    for option, value in before.items():
        jax.config.update(option, value)


def test_the_folder_is_the_users_own(tmp_path):
    folder = use_compilation_cache()
    assert folder == tmp_path / "cache" / "jaxscale"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [getattr(jax.config, option) for option in OPTIONS] == [str(folder), 0.0, -1]
    assert use_compilation_cache() == folder


def test_jaxscales_variable_comes_before_jaxs_and_both_before_the_default(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "theirs"))
    assert use_compilation_cache() == tmp_path / "theirs"
    monkeypatch.setenv("JAXSCALE_CACHE_DIR", str(tmp_path / "ours"))
    assert use_compilation_cache() == tmp_path / "ours"


def test_no_folder_no_cache(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAXSCALE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    before = jax.config.jax_compilation_cache_dir
    assert use_compilation_cache() is None
    assert jax.config.jax_compilation_cache_dir == before


def test_a_folder_of_somebody_else_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert use_compilation_cache() is None


COMPILE = """
import jax, jax.numpy as jnp
from jaxscale.runtime import use_compilation_cache
use_compilation_cache()
print(float(jax.jit(lambda x: jnp.sum(x * 2))(jnp.arange(4.0))))
"""


def test_compiled_programs_stay(tmp_path):
    environment = {**os.environ, "JAXSCALE_CACHE_DIR": str(tmp_path / "kept")}
    run = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "12.0\n", "")
    assert any((tmp_path / "kept").iterdir())
