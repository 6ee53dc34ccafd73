//! TLS 1.3, and connections with it or without.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, InconsistentKeys, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

/// Reasons why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("cannot read {}: {source}; name a file that this user may read", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}: {what}", .path.display())]
    Unusable { path: PathBuf, what: String },
}

fn unusable(path: &Path, what: impl Into<String>) -> TlsError {
    TlsError::Unusable {
        path: path.to_owned(),
        what: what.into(),
    }
}

fn in_pem(path: &Path, error: pem::Error, none: &str) -> TlsError {
    match error {
        pem::Error::Io(source) => TlsError::Unreadable {
            path: path.to_owned(),
            source,
        },
        pem::Error::NoItemsFound => unusable(path, none),
        error => unusable(path, format!("{error}; {none}")),
    }
}

/// Reads a certificate and its key, and returns the acceptor of connections with them.
///
/// # Errors
/// [`TlsError`], with the file and a remedy.
pub(crate) fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    const NO_CERTIFICATE: &str =
        "no usable certificate; name a PEM file, with -----BEGIN CERTIFICATE-----";
    const NO_KEY: &str =
        "no usable private key; name a PEM file, with -----BEGIN PRIVATE KEY----- and no password";
    let in_certificate = |error| in_pem(certificate, error, NO_CERTIFICATE);
    let chain = CertificateDer::pem_file_iter(certificate).map_err(in_certificate)?;
    let chain: Result<Vec<_>, _> = chain.collect();
    let chain = chain.map_err(in_certificate)?;
    if chain.is_empty() {
        return Err(unusable(certificate, NO_CERTIFICATE));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| in_pem(key, error, NO_KEY))?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_no_client_auth())
        .and_then(|builder| builder.with_single_cert(chain, secret));
    let mut config = config.map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            let certificate = certificate.display();
            unusable(
                key,
                format!(
                    "not the key of the certificate in {certificate}; name the key that it was made for, and \
                     the server's certificate before those of authorities"
                ),
            )
        }
        rustls::Error::InvalidCertificate(error) => {
            unusable(certificate, format!("{error:?}; {NO_CERTIFICATE}"))
        }
        error => unusable(
            key,
            format!("{error}; name a key for ECDSA, RSA or Ed25519"),
        ),
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config).into())
}

/// Something to read from and to write to.
trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

/// A connection, with TLS or without.
///
/// The first read or write does the handshake, so the handshake has the bounds of a request: those of the listener.
pub(crate) enum Stream {
    Plain(TcpStream),
    Shaking(Box<Accept<TcpStream>>),
    Tls(Box<TlsStream<TcpStream>>),
    /// Its handshake has failed.
    Failed,
}

impl Stream {
    pub(crate) fn new(stream: TcpStream, tls: Option<&TlsAcceptor>) -> Self {
        match tls {
            Some(tls) => Self::Shaking(Box::new(tls.accept(stream))),
            None => Self::Plain(stream),
        }
    }

    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Pin<&mut dyn Duplex>>> {
        if let Self::Shaking(accept) = self {
            let shaken = ready!(Pin::new(accept).poll(context));
            *self = shaken.map_or(Self::Failed, |stream| Self::Tls(Box::new(stream)));
        }
        Poll::Ready(match self {
            Self::Plain(stream) => Ok(Pin::new(stream)),
            Self::Tls(stream) => Ok(Pin::new(stream)),
            Self::Shaking(_) | Self::Failed => Err(io::ErrorKind::ConnectionAborted.into()),
        })
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_open(context))?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(context))?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(context))?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(context))?.poll_shutdown(context)
    }
}
