//! Chromium without a window, told what to do by the WebDriver protocol of `chromedriver`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

/// Time limit for the page to show something, in milliseconds: a busy machine is slow.
const TIMEOUT_MS: u64 = 60_000;
/// Line that the driver prints when it listens.
const LISTENS: &str = "was started successfully on port ";

/// A browser with one page.
pub struct Browser {
    driver: Child,
    session: String,
    _profile: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser, which the driver started.
        let _ = agent().delete(&self.session).call();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn agent() -> ureq::Agent {
    let limit = Duration::from_millis(2 * TIMEOUT_MS);
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(limit));
    config.build().into()
}

/// Sends a command, and returns the value that it has.
fn ask(url: &str, body: &Value) -> Value {
    let answer = agent().post(url).send_json(body);
    let mut answer = answer.expect("chromedriver answers");
    let text = answer.body_mut().read_to_string().expect("is text");
    let mut value: Value = serde_json::from_str(&text).expect("is JSON");
    assert!(answer.status().is_success(), "{url} {body}: {text}");
    value["value"].take()
}

impl Browser {
    /// Opens a page.
    pub fn open(url: &str) -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromedriver starts; scripts/setup installs it");
        let stdout = driver.stdout.take().expect("is piped");
        let port = BufReader::new(stdout)
            .lines()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once(LISTENS)?.1.trim_end_matches('.').to_owned()));
        let profile = tempfile::tempdir().expect("a directory");
        let base = format!("http://127.0.0.1:{}/session", port.expect("a port"));
        let data = format!("--user-data-dir={}", profile.path().display());
        let wish = json!({ "capabilities": { "alwaysMatch": {
            "goog:loggingPrefs": { "browser": "ALL" },
            "timeouts": { "script": TIMEOUT_MS },
            "goog:chromeOptions": { "args": [
                "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--disable-dev-shm-usage", "--window-size=1280,1250", data,
            ] },
        } } });
        let session = ask(&base, &wish)["sessionId"].take();
        let browser = Self {
            driver,
            session: format!("{base}/{}", session.as_str().expect("a session")),
            _profile: profile,
        };
        browser.command("url", &json!({ "url": url }));
        browser
    }

    fn command(&self, name: &str, body: &Value) -> Value {
        ask(&format!("{}/{name}", self.session), body)
    }

    /// Runs a script in the page.
    pub fn run(&self, script: &str) -> Value {
        self.command("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression has this value: the page tells of each change of it.
    pub fn wait(&self, expression: &str, expected: &str) {
        self.until(expression, "===", expected);
    }

    /// Waits until an expression contains this text.
    pub fn wait_for(&self, expression: &str, expected: &str) {
        self.until(expression, "includes", expected);
    }

    fn until(&self, expression: &str, how: &str, expected: &str) {
        let script = format!(
            "const [how, expected, done] = arguments;
             const now = () => {expression};
             const met = (value) => how === '===' ? value === expected : value?.includes(expected);
             if (met(now())) return done(null);
             const watch = new MutationObserver(() => {{ if (met(now())) end(null); }});
             const late = setTimeout(() => end(String(now())), {});
             const end = (said) => {{ watch.disconnect(); clearTimeout(late); drawing.removeEventListener('load', look); done(said); }};
             const look = () => {{ if (met(now())) end(null); }};
             const drawing = document.getElementById('drawing');
             drawing.addEventListener('load', look);
             watch.observe(document, {{ subtree: true, childList: true, characterData: true, attributes: true }});",
            TIMEOUT_MS / 2
        );
        let body = json!({ "script": script, "args": [how, expected] });
        let said = self.command("execute/async", &body);
        assert_eq!(said, Value::Null, "{expression} {how} {expected}");
    }

    /// Returns the browser's complaints, such as violations of the page's own policy.
    pub fn complaints(&self) -> Vec<String> {
        let entries = self.command("se/log", &json!({ "type": "browser" }));
        let entries = entries.as_array().expect("a list").iter();
        entries
            .filter(|entry| entry["level"] == "SEVERE")
            // Browsers ask for it by themselves.
            .filter(|entry| !entry.to_string().contains("favicon.ico"))
            .map(ToString::to_string)
            .collect()
    }

    /// Takes a picture of the page, where `IBVSWITCH_SCREENSHOTS` names a directory for pictures.
    pub fn keep(&self, name: &str) {
        let Some(dir) = std::env::var_os("IBVSWITCH_SCREENSHOTS") else {
            return;
        };
        let answer = agent().get(format!("{}/screenshot", self.session)).call();
        let mut answer = answer.expect("chromedriver answers");
        let text = answer.body_mut().read_to_string().expect("is text");
        let value: Value = serde_json::from_str(&text).expect("is JSON");
        let bytes = base64(value["value"].as_str().expect("a picture"));
        std::fs::write(Path::new(&dir).join(name), bytes).expect("is writable");
    }
}

/// The bytes that base64 stands for.
fn base64(text: &str) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for digit in text
        .bytes()
        .filter_map(|it| digits.iter().position(|known| *known == it))
    {
        bits = bits << 6 | digit as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
