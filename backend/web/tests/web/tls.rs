//! The page over TLS, asked by curl and by openssl.

use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::page::configuration;
use crate::place::{Place, fails};

/// A certificate for this machine that signs itself, and its key.
fn certificate(dir: &Path, name: &str) -> [PathBuf; 2] {
    let [file, key] = ["crt", "key"].map(|end| dir.join(format!("{name}.{end}")));
    let words = "req -x509 -nodes -days 2 -subj /CN=lab -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 \
                 -addext subjectAltName=DNS:localhost,IP:127.0.0.1";
    let mut openssl = Command::new("openssl");
    openssl.args(words.split_whitespace());
    openssl.arg("-out").arg(&file).arg("-keyout").arg(&key);
    let made = openssl.output().expect("openssl runs");
    assert!(made.status.success(), "{made:?}");
    [file, key]
}

fn text(path: &Path) -> &str {
    path.to_str().expect("is text")
}

#[test]
fn the_page_speaks_tls() {
    let place = Place::new(configuration());
    let dir = tempfile::tempdir().expect("a directory");
    let [file, key] = certificate(dir.path(), "own");
    let (file, key) = (text(&file), text(&key));
    let web = place.web(&["--allow-changes", "--tls-cert", file, "--tls-key", key]);
    let origin = web.origin();
    let address = origin.strip_prefix("https://").expect("is TLS");
    let (name, bearer) = web.bearer();
    let bearer = format!("{name}: {bearer}");
    let curl = |words: &[&str], path: &str| -> Output {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--noproxy", "*", "-H", &bearer])
            .args(words);
        curl.arg(format!("{origin}{path}"))
            .output()
            .expect("curl runs")
    };
    let metrics = || {
        let answer = curl(&["--cacert", file, "--fail"], "/metrics");
        let text = String::from_utf8_lossy(&answer.stdout).into_owned();
        assert!(text.contains("ibvswitch_up 1\n"), "{answer:?}");
    };
    metrics();
    // A certificate that nobody vouches for.
    assert_eq!(curl(&[], "/metrics").status.code(), Some(60));
    // A cluster by HTTPS, from its own address alone.
    let create = r#"{"action":"create","name":"red","vms":2}"#;
    for (from, status) in [
        (origin.clone(), "200"),
        (origin.replace("https", "http"), "403"),
    ] {
        let from = format!("Origin: {from}");
        let rest = ["-o", "/dev/null", "-w", "%{http_code}", "-d", create];
        let words = [&["--cacert", file, "-H", &from][..], &rest].concat();
        let answer = curl(&words, "/clusters?plan=true");
        assert_eq!(String::from_utf8_lossy(&answer.stdout), status);
    }

    let openssl = |version: &str| {
        let mut openssl = Command::new("openssl");
        let words = [
            "s_client",
            "-connect",
            address,
            "-CAfile",
            file,
            "-verify_return_error",
        ];
        let output = openssl.args(words).arg(version).stdin(Stdio::null());
        output.output().expect("openssl runs")
    };
    let said = openssl("-tls1_3");
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(
        said.contains("Verify return code: 0 (ok)") && said.contains("TLSv1.3"),
        "{said}"
    );
    assert!(!openssl("-tls1_2").status.success());

    // Clients that say nothing, or begin a handshake and say no more, or speak without TLS.
    let hello = [0x16, 3, 1, 2, 0, 1, 0];
    let silent: Vec<TcpStream> = (0..600)
        .map(|at| {
            let mut stream = TcpStream::connect(address).expect("listens");
            let bytes = [&[][..], &hello, b"GET / HTTP/1.1\r\n\r\n"][at % 3];
            // One that had to make room may be closed already.
            let _ = stream.write_all(bytes);
            stream
        })
        .collect();
    metrics();
    drop(silent);
    metrics();
}

#[test]
fn files_that_are_no_certificate_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let [file, key] = certificate(dir.path(), "own");
    let [_, other] = certificate(dir.path(), "other");
    let [none, empty, damaged] = ["none", "empty", "damaged"].map(|name| dir.path().join(name));
    std::fs::write(&empty, "").expect("is writable");
    let bytes = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    std::fs::write(&damaged, bytes).expect("is writable");
    for (certificate, key, named, what) in [
        (&none, &key, &none, "name a file that this user may read"),
        (&file, &none, &none, "name a file that this user may read"),
        (
            &empty,
            &key,
            &empty,
            "no usable certificate; name a PEM file",
        ),
        (&key, &key, &key, "no usable certificate; name a PEM file"),
        (
            &damaged,
            &key,
            &damaged,
            "no usable certificate; name a PEM file",
        ),
        (
            &file,
            &file,
            &file,
            "no usable private key; name a PEM file",
        ),
        (&file, &other, &other, "not the key of the certificate in"),
    ] {
        let files = ["--tls-cert", text(certificate), "--tls-key", text(key)];
        let error = fails(&files);
        assert!(
            error.contains(text(named)) && error.contains(what),
            "{error}"
        );
    }
    assert!(fails(&["--tls-cert", text(&file)]).contains("--tls-key"));
}
