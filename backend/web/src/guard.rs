//! Access control: reading and changing.
//!
//! A browser sends what any page in it asks for, with the cookies of the asked server. So a request has to
//! name this server as its host (a name of another one that leads here is *DNS rebinding*), and has to have the token,
//! which is in a cookie that pages of others do not send, or in an `Authorization` header. A request that changes
//! something has to come from this server's own page besides, as the browser says.

use std::fmt::Write;
use std::io::{self, Read};
use std::net::SocketAddr;

use axum::http::{HeaderMap, StatusCode, header};

/// Name of the cookie with the token. Cookies do not tell ports apart, so the name does.
fn cookie_name(port: u16) -> String {
    format!("ibvswitch-{port}")
}

/// Bytes of a token that is made here.
const TOKEN_LEN: usize = 16;

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The host in it is not this server's.
    #[error("this server has no such name; open it as it was printed, or add --host NAME")]
    Host,
    /// There is no token, or a wrong one.
    #[error("the token is missing; open the address that `ibvswitch web` has printed")]
    Token,
    /// It is for a change and not from this server's page.
    #[error("changes are for this server's own page")]
    Origin,
    /// Nothing may be changed.
    #[error("nothing can be changed here; start `ibvswitch web --allow-changes`")]
    ReadOnly,
}

impl Refused {
    /// The status that says so.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Origin | Self::ReadOnly => StatusCode::FORBIDDEN,
        }
    }
}

/// Access rights of requests.
#[derive(Debug, Clone)]
pub struct Guard {
    /// Names of this server; `None` for every name.
    hosts: Option<Vec<String>>,
    /// The server listens on all addresses, and every one of them is its name.
    unspecified: bool,
    port: u16,
    /// `None`: whoever reaches the server may ask.
    token: Option<String>,
    changes: bool,
    /// The server speaks TLS.
    tls: bool,
}

impl Guard {
    /// The guard of a server at `address`, which has these names besides, with or without ports.
    #[must_use]
    pub fn new<'a>(
        address: SocketAddr,
        names: impl IntoIterator<Item = &'a String>,
        token: Option<String>,
        changes: bool,
    ) -> Self {
        let port = address.port();
        let mut hosts: Vec<String> = vec![address.to_string()];
        let unspecified = address.ip().is_unspecified();
        if address.ip().is_loopback() || unspecified {
            hosts.push(format!("localhost:{port}"));
        }
        for name in names {
            hosts.push(name.to_ascii_lowercase());
            hosts.push(format!("{}:{port}", name.to_ascii_lowercase()));
        }
        Self {
            hosts: Some(hosts),
            unspecified,
            port,
            token,
            changes,
            tls: false,
        }
    }

    /// The same of a server that speaks TLS, or not.
    #[must_use]
    pub const fn with_tls(mut self, tls: bool) -> Self {
        self.tls = tls;
        self
    }

    /// The guard of a server that answers by every name, and changes nothing: whoever leads a browser here by a name of
    /// its own learns no more than by asking itself.
    #[must_use]
    pub fn anywhere(address: SocketAddr, token: Option<String>) -> Self {
        Self {
            hosts: None,
            unspecified: address.ip().is_unspecified(),
            port: address.port(),
            token,
            changes: false,
            tls: false,
        }
    }

    /// Whether changes are allowed at all.
    #[must_use]
    pub const fn allows_changes(&self) -> bool {
        self.changes
    }

    /// Checks the host that a request names.
    ///
    /// # Errors
    /// [`Refused::Host`].
    pub fn host(&self, headers: &HeaderMap) -> Result<(), Refused> {
        let Some(hosts) = &self.hosts else {
            return Ok(());
        };
        let host = text(headers, &header::HOST).unwrap_or_default();
        // A number leads to no other server than the one that has it, whatever a name does.
        let is_ours = |host: SocketAddr| host.port() == self.port;
        let by_number = self.unspecified && host.parse().is_ok_and(is_ours);
        if by_number || hosts.contains(&host.to_ascii_lowercase()) {
            Ok(())
        } else {
            Err(Refused::Host)
        }
    }

    /// Checks a token from the address line.
    #[must_use]
    pub fn knows(&self, given: &str) -> bool {
        self.token.as_deref().is_none_or(|token| same(token, given))
    }

    /// Checks that a request may ask.
    ///
    /// # Errors
    /// [`Refused::Token`].
    pub fn read(&self, headers: &HeaderMap) -> Result<(), Refused> {
        let bearer =
            text(headers, &header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        let name = cookie_name(self.port);
        let cookies = headers.get_all(header::COOKIE).into_iter();
        let mut cookies = cookies
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .filter_map(|(known, value)| (known == name).then_some(value));
        let knows = self.token.is_none()
            || bearer.is_some_and(|given| self.knows(given))
            || cookies.any(|given| self.knows(given));
        if knows { Ok(()) } else { Err(Refused::Token) }
    }

    /// Checks that a request, which may ask, may change something.
    ///
    /// # Errors
    /// [`Refused::ReadOnly`] or [`Refused::Origin`].
    pub fn change(&self, headers: &HeaderMap) -> Result<(), Refused> {
        if !self.changes {
            return Err(Refused::ReadOnly);
        }
        let origin = text(headers, &header::ORIGIN).unwrap_or_default();
        // Without TLS here there may be a proxy that has it.
        let origin = { origin.split_once("://") }
            .filter(|&(scheme, _)| !self.tls || scheme.eq_ignore_ascii_case("https"))
            .map(|(_, host)| host.to_ascii_lowercase());
        let host = text(headers, &header::HOST).map(str::to_ascii_lowercase);
        let site = headers.get("sec-fetch-site");
        if origin.is_some() && origin == host && site.is_none_or(|site| site == "same-origin") {
            Ok(())
        } else {
            Err(Refused::Origin)
        }
    }

    /// The header that gives a browser the token.
    #[must_use]
    pub fn cookie(&self) -> Option<String> {
        let token = self.token.as_deref()?;
        let name = cookie_name(self.port);
        let tls = if self.tls { "; Secure" } else { "" };
        Some(format!(
            "{name}={token}; Path=/; HttpOnly; SameSite=Strict{tls}"
        ))
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Compares in a time that tells nothing of where the two differ.
fn same(known: &str, given: &str) -> bool {
    let pairs = known.bytes().zip(given.bytes());
    known.len() == given.len() && pairs.fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

/// A new token.
///
/// # Errors
/// The system has no random numbers.
pub fn new_token() -> io::Result<String> {
    let mut bytes = [0; TOKEN_LEN];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn guard(changes: bool) -> Guard {
        let address = "127.0.0.1:8421".parse().expect("an address");
        let names = ["Lab.Example".to_owned()];
        Guard::new(address, &names, Some(TOKEN.to_owned()), changes)
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().expect("a value"));
        }
        headers
    }

    #[test]
    fn a_name_that_leads_here_is_not_enough() {
        let guard = guard(false);
        for (host, allowed) in [
            ("127.0.0.1:8421", true),
            ("localhost:8421", true),
            ("lab.example", true),
            ("LAB.example:8421", true),
            ("127.0.0.1", false),
            ("127.0.0.1:80", false),
            ("evil.example:8421", false),
            ("lab.example.evil.example", false),
            ("", false),
        ] {
            let checked = guard.host(&headers(&[("host", host)]));
            assert_eq!(checked.is_ok(), allowed, "{host}");
        }
        assert_eq!(guard.host(&HeaderMap::new()), Err(Refused::Host));

        // On all addresses, each of them is a name.
        let address = "0.0.0.0:8421".parse().expect("an address");
        let names = ["host1:8421".to_owned()];
        let guard = Guard::new(address, &names, Some(TOKEN.to_owned()), false);
        for (host, allowed) in [
            ("10.1.2.3:8421", true),
            ("[fe80::1]:8421", true),
            ("localhost:8421", true),
            ("Host1:8421", true),
            ("10.1.2.3:80", false),
            ("evil.example:8421", false),
        ] {
            let checked = guard.host(&headers(&[("host", host)]));
            assert_eq!(checked.is_ok(), allowed, "{host}");
        }
        assert_eq!(
            Guard::anywhere(address, None).host(&HeaderMap::new()),
            Ok(())
        );
    }

    #[test]
    fn the_token_is_asked_for() {
        let guard = guard(false);
        for (name, value, allowed) in [
            ("cookie", "ibvswitch-8421=0123456789abcdef", true),
            ("cookie", "a=b; ibvswitch-8421=0123456789abcdef; c", true),
            ("cookie", "ibvswitch-8422=0123456789abcdef", false),
            ("cookie", "ibvswitch-8421=0123456789abcdee", false),
            ("cookie", "ibvswitch-8421=0123456789abcde", false),
            ("cookie", "ibvswitch-8421=", false),
            ("authorization", "Bearer 0123456789abcdef", true),
            ("authorization", "Basic 0123456789abcdef", false),
            ("authorization", "0123456789abcdef", false),
        ] {
            let checked = guard.read(&headers(&[(name, value)]));
            assert_eq!(checked.is_ok(), allowed, "{name}: {value}");
        }
        assert_eq!(guard.read(&HeaderMap::new()), Err(Refused::Token));
    }

    #[test]
    fn changes_are_for_the_page_alone() {
        let own = [
            ("host", "localhost:8421"),
            ("origin", "http://localhost:8421"),
        ];
        assert_eq!(guard(false).change(&headers(&own)), Err(Refused::ReadOnly));
        assert_eq!(guard(true).change(&headers(&own)), Ok(()));
        for origin in ["http://evil.example", "null", "http://127.0.0.1:8421", ""] {
            let other = [("host", "localhost:8421"), ("origin", origin)];
            assert_eq!(
                guard(true).change(&headers(&other)),
                Err(Refused::Origin),
                "{origin}"
            );
        }
        let none = headers(&[("host", "localhost:8421")]);
        assert_eq!(guard(true).change(&none), Err(Refused::Origin));
        let site = |site| {
            let [host, origin] = own;
            guard(true).change(&headers(&[host, origin, ("sec-fetch-site", site)]))
        };
        assert_eq!(site("cross-site"), Err(Refused::Origin));
        assert_eq!(site("same-site"), Err(Refused::Origin));
        assert_eq!(site("same-origin"), Ok(()));
        let tls = guard(true).with_tls(true);
        let [host, origin] = own;
        assert_eq!(tls.change(&headers(&[host, origin])), Err(Refused::Origin));
        let origin = ("origin", "https://localhost:8421");
        assert_eq!(tls.change(&headers(&[host, origin])), Ok(()));
        let cookie = tls.cookie().expect("has a token");
        assert!(cookie.ends_with("; Secure"), "{cookie}");
    }

    #[test]
    fn tokens_are_not_guessed() {
        let (one, other) = (new_token().expect("a token"), new_token().expect("a token"));
        assert_eq!(one.len(), 2 * TOKEN_LEN);
        assert_ne!(one, other);
    }
}
