//! Addresses and names of the command line.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// An address to listen on, as it was written, and the addresses that it stands for: the first that can be had is used.
#[derive(Debug, Clone)]
pub(crate) struct Listen {
    pub(crate) text: String,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Listen {
    /// `ADDRESS:PORT`, `NAME:PORT`, `:PORT` for all addresses, or `PORT` for 127.0.0.1.
    ///
    /// # Errors
    /// Text for the command line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let port = |port: &str| port.parse::<u16>().ok();
        let addresses = if let Some(port) = port(text) {
            vec![(Ipv4Addr::LOCALHOST, port).into()]
        } else if let Some(port) = text.strip_prefix(':').and_then(port) {
            vec![
                (Ipv6Addr::UNSPECIFIED, port).into(),
                (Ipv4Addr::UNSPECIFIED, port).into(),
            ]
        } else if let Ok(address) = text.parse() {
            vec![address]
        } else {
            let form = "write ADDRESS:PORT, such as 127.0.0.1:8421, or NAME:PORT, :PORT or PORT";
            let (name, number) = text.rsplit_once(':').ok_or(form)?;
            let number = port(number).ok_or(form)?;
            let found = (name, number).to_socket_addrs();
            let mut found: Vec<_> = found.map_err(|error| format!("{error}; {form}"))?.collect();
            found.sort_by_key(SocketAddr::is_ipv6);
            found
        };
        Ok(Self {
            text: text.to_owned(),
            addresses,
        })
    }
}

/// A name in browsers' addresses: a host, with or without a port.
///
/// # Errors
/// Text for the command line.
pub(crate) fn host(text: &str) -> Result<String, String> {
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_host) || text.ends_with(':') {
        return Err(
            "write a host's name alone, such as lab.example or lab.example:8080".to_owned(),
        );
    }
    Ok(text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_addresses() {
        for (text, first) in [
            ("127.0.0.1:8421", "127.0.0.1:8421"),
            ("[::1]:8421", "[::1]:8421"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("localhost:9843", "127.0.0.1:9843"),
            ("9843", "127.0.0.1:9843"),
            (":9843", "[::]:9843"),
        ] {
            let listen = Listen::parse(text).expect("is an address");
            assert_eq!(listen.addresses[0].to_string(), first, "{text}");
        }
        for text in [
            "",
            ":",
            "localhost",
            "127.0.0.1",
            "127.0.0.1:",
            "1:70000",
            "70000",
        ] {
            let error = Listen::parse(text).expect_err(text);
            assert!(error.contains("write ADDRESS:PORT"), "{text}: {error}");
        }
    }

    #[test]
    fn names_are_no_addresses_of_pages() {
        for text in ["proxy", "Lab.Example:8080", "[::1]:80", "10.0.0.1"] {
            assert_eq!(host(text), Ok(text.to_ascii_lowercase()));
        }
        for text in ["http://proxy", "proxy/", "", "a b", "proxy:", "p\u{e9}"] {
            host(text).expect_err(text);
        }
    }
}
