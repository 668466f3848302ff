# SPDX-License-Identifier: BSD-2-Clause
"""Certificates, for tests that have `pytest_plugins = ["certificates"]`."""
import subprocess

import pytest

EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]


def openssl(*args, **kwargs):
    return subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True,
                          timeout=20, **kwargs)


def certificate(place, name, signer=None):
    sign = ["-CA", place / f"{signer}.crt", "-CAkey", place / f"{signer}.key"] if signer else []
    openssl("req", "-x509", *EC, "-noenc", "-days", 1, "-subj", f"/CN={name}", *sign,
            "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
            "-keyout", place / f"{name}.key", "-out", place / f"{name}.crt")


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """Two authorities; two certificates for servers and one for a client of the first."""
    place = tmp_path_factory.mktemp("certificates")
    for name in "ca", "other-ca":
        certificate(place, name)
    for name in "server", "second", "client":
        certificate(place, name, "ca")
    certificate(place, "stranger", "other-ca")
    openssl("ec", "-in", place / "server.key", "-aes256", "-passout", "pass:secret",
            "-out", place / "locked.key")
    return place


def tls_options(certs, name="server"):
    return ["--tls-cert-file", str(certs / f"{name}.crt"), "--tls-key-file",
            str(certs / f"{name}.key"), "--tls-ca-cert-file", str(certs / "ca.crt")]
