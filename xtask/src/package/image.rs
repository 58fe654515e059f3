//! The image that `packaging/container/Containerfile` describes: built without a registry, and run.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::deb;
use crate::run::{as_root, root, status, target};
use crate::setup;

/// Name of the image.
const IMAGE: &str = "towpath";
/// User of the image, as distroless has it.
const USER: &str = "nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n";

/// Builds the image's last stage over a base like distroless, which has the libraries that the program names and a user,
/// and no shell. Runs it as that user, with its own command, and asks its health check.
pub(super) fn check(program: &Path) -> Result<(), String> {
    setup::containers()?;
    let folder = target().join("image");
    status(as_root("rm", &[]).arg("-rf").arg(&folder))?;
    let error = |e: std::io::Error| format!("{}: {e}", folder.display());
    for part in ["base/etc", "base/tmp", "out/data"] {
        fs::create_dir_all(folder.join(part)).map_err(error)?;
    }
    fs::write(folder.join("base/etc/passwd"), USER).map_err(error)?;
    fs::write(folder.join("base/etc/group"), "nonroot:x:65532:\n").map_err(error)?;
    deb::strip(program, &folder.join("out/towpath"))?;
    libraries(program, &folder.join("base"))?;
    let file = root().join("packaging/container/Containerfile");
    let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    fs::write(folder.join("Containerfile"), last_stage(&text)?).map_err(error)?;
    let buildah = Buildah { folder: folder.clone() };
    status(buildah.command(&["build", "--format", "docker", "--layers=false", "--tag", IMAGE]).arg(&folder))?;
    run(&buildah)?;
    status(as_root("rm", &[]).arg("-rf").arg(&folder))
}

/// The last stage of a container file, over an empty image with the prepared base. What it takes from the stage that
/// builds is in the folder `out`.
fn last_stage(text: &str) -> Result<String, String> {
    let stage = text.rfind("\nFROM ").ok_or("the container file has no second stage")?;
    let (_, lines) = text[stage + 1..].split_once('\n').ok_or("the last stage is empty")?;
    let lines = lines.replace("--from=build ", "").replace(" /out/", " out/");
    Ok(format!("FROM scratch\nCOPY base/ /\n{lines}"))
}

/// Copies the libraries that a program names, with the loader.
fn libraries(program: &Path, base: &Path) -> Result<(), String> {
    let output = Command::new("ldd").arg(program).output().map_err(|e| format!("ldd: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    for path in text.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new) {
        let to = base.join(path.strip_prefix("/").unwrap_or(path));
        let error = |e: std::io::Error| format!("{}: {e}", path.display());
        fs::create_dir_all(to.parent().unwrap_or(base)).map_err(error)?;
        fs::copy(path, to).map_err(error)?;
    }
    Ok(())
}

/// Builder of images with a storage of its own, which needs no daemon and no namespaces.
struct Buildah {
    folder: PathBuf,
}

impl Buildah {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = as_root("buildah", &[("BUILDAH_ISOLATION", "chroot")]);
        command
            .arg("--root")
            .arg(self.folder.join("storage"))
            .arg("--runroot")
            .arg(self.folder.join("running"));
        command.args(["--storage-driver", "vfs"]).args(args);
        command
    }

    fn output(&self, args: &[&str]) -> Result<String, String> {
        let mut command = self.command(args);
        let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            Ok(text)
        } else {
            Err(format!("{command:?}: {}: {errors}", output.status))
        }
    }

    /// A value of the image's configuration.
    fn config(&self, template: &str) -> Result<String, String> {
        self.output(&["inspect", "--type", "image", "--format", template, IMAGE])
    }
}

/// Runs the server in a container, asks the health check, and looks for a shell.
fn run(buildah: &Buildah) -> Result<(), String> {
    let user = buildah.config("{{.Docker.Config.User}}")?;
    if user != "nonroot" {
        return Err(format!("the image's user is {user:?}, not nonroot"));
    }
    let health = buildah.config("{{range .Docker.Config.Healthcheck.Test}}{{println .}}{{end}}")?;
    let health: Vec<&str> = health.lines().collect();
    let ["CMD", health @ ..] = health.as_slice() else {
        return Err(format!("the image's health check is no command: {health:?}"));
    };
    let container = buildah.output(&["from", IMAGE])?;
    let in_container = ["run", &container, "--"];
    // On a free port: the container has this machine's network.
    let mut serve = buildah
        .command(&[&in_container[..], &["/usr/bin/towpath", "serve", "--listen", "127.0.0.1:0"]].concat());
    let server = serve.stdout(Stdio::piped()).spawn().map_err(|e| format!("{serve:?}: {e}"))?;
    let mut server = Server(server);
    let stdout = server.0.stdout.take().ok_or("no standard output")?;
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let address =
        lines.find(|line| line.contains(" at http://")).ok_or("the container's server does not start")?;
    // The server has the data folder open, so the check can have asked nobody else.
    println!("{address}: {}", buildah.output(&[&in_container[..], health].concat())?);
    drop(server);
    match buildah.output(&[&in_container[..], &["/bin/sh", "-c", "true"]].concat()) {
        Ok(_) => Err("the image has a shell".into()),
        Err(_) => Ok(()),
    }
}

/// A server in a container; it ends with the value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_stage_is_built_over_a_prepared_base() {
        let file = "FROM rust AS build\nRUN x\n\nFROM base:nonroot\nCOPY --from=build --chown=a:a /out/data /data\nUSER a\n";
        let stage = last_stage(file).unwrap();
        assert_eq!(stage, "FROM scratch\nCOPY base/ /\nCOPY --chown=a:a out/data /data\nUSER a\n");
        assert!(last_stage("FROM rust\nRUN x\n").is_err());
    }
}
