//! A real S3 server in the test process.

use std::path::{Path, PathBuf};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::dto::{
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, GetObjectInput,
    GetObjectOutput, HeadObjectInput, HeadObjectOutput, ListObjectsV2Input, ListObjectsV2Output,
    PutObjectInput, PutObjectOutput,
};
use s3s::service::S3ServiceBuilder;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};
use s3s_fs::FileSystem;
use tokio::net::TcpListener;

pub const KEY: &str = "key";
pub const SECRET: &str = "secret";
/// End of the names of files, which objects do not have.
const SUFFIX: &str = ".object";

/// s3s-fs stores an object in the file of its name, so it cannot store both `a` and `a/b`: names get a suffix.
struct Storage {
    files: FileSystem,
    root: PathBuf,
}

impl Storage {
    /// s3s-fs would create a missing bucket.
    fn has(&self, bucket: &str) -> S3Result<()> {
        if self.root.join(bucket).is_dir() { Ok(()) } else { Err(s3_error!(NoSuchBucket)) }
    }
}

fn named(key: &str) -> String {
    format!("{key}{SUFFIX}")
}

#[async_trait::async_trait]
impl S3 for Storage {
    async fn put_object(
        &self,
        mut request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        self.has(&request.input.bucket)?;
        request.input.key = named(&request.input.key);
        self.files.put_object(request).await
    }

    async fn get_object(
        &self,
        mut request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        self.has(&request.input.bucket)?;
        request.input.key = named(&request.input.key);
        self.files.get_object(request).await
    }

    async fn head_object(
        &self,
        mut request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        self.has(&request.input.bucket)?;
        request.input.key = named(&request.input.key);
        self.files.head_object(request).await
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.has(&request.input.bucket)?;
        let mut listed = self.files.list_objects_v2(request).await?;
        for object in listed.output.contents.iter_mut().flatten() {
            object.key = object.key.take().map(|key| key.trim_end_matches(SUFFIX).to_owned());
        }
        Ok(listed)
    }

    async fn delete_objects(
        &self,
        mut request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.has(&request.input.bucket)?;
        for object in &mut request.input.delete.objects {
            object.key = named(&object.key);
        }
        self.files.delete_objects(request).await
    }

    async fn delete_object(
        &self,
        mut request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.has(&request.input.bucket)?;
        request.input.key = named(&request.input.key);
        self.files.delete_object(request).await
    }
}

/// Serves the buckets of a folder; to everybody unless `locked`. Returns the address.
pub async fn serve(folder: &Path, locked: bool) -> String {
    let mut builder =
        S3ServiceBuilder::new(Storage { files: FileSystem::new(folder).unwrap(), root: folder.to_owned() });
    if locked {
        builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
    }
    let service = builder.build();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = service.clone();
            tokio::spawn(async move {
                let builder = Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
    address
}
