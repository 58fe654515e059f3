//! Session of a reader of the web page who signed in, and what such a browser sends.

use super::{TestResponse, TestServer};

pub const BROWSER: (&str, &str) = ("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
pub const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// Session of a signed-in reader.
pub struct Session<'a> {
    pub server: &'a TestServer,
    pub cookie: String,
}

impl<'a> Session<'a> {
    /// Signs in with the token `t0ken`.
    pub fn begin(server: &'a TestServer) -> Self {
        let signed_in = server.ask("POST", "/sign-in", &[FORM], b"token=t0ken");
        let cookie = signed_in.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        Self { server, cookie }
    }

    pub fn page(&self, path: &str) -> String {
        self.server.ask("GET", path, &[BROWSER, ("cookie", &self.cookie)], b"").text()
    }

    /// Sends a form with the secret of the session.
    pub fn send(&self, path: &str, fields: &str) -> TestResponse {
        let shown = self.page("/");
        let secret = shown.split("name=\"form_secret\" value=\"").nth(1).unwrap().split('"').next().unwrap();
        let body = format!("form_secret={secret}&{fields}");
        self.server.ask("POST", path, &[FORM, BROWSER, ("cookie", &self.cookie)], body.as_bytes())
    }
}
