// Package servers starts the real servers that s3fence is tested against:
// MinIO, dynalite (DynamoDB's protocol, kept on disk) and moto. `s3fence local
// serve` starts the first two for people.
//
// A server's program is looked for on PATH, then in the cache folder
// ($S3FENCE_CACHE, else s3fence in the user's cache folder), and else built
// there from its pinned version. One that can't be had is an error that names
// it and says what is needed; nothing is skipped here.
//
// Guarantees:
//   - A Start function returns when the server answers, and answers as the
//     process just started: never another one that took the port.
//   - Every server listens on 127.0.0.1 only.
//   - [Server.Stop] returns when the process is gone. On Linux the process
//     also dies with this one, however this one ends; elsewhere a parent
//     that is killed leaves its servers behind.
//   - A folder serves one process at a time.
//   - The caller's AWS_* and MINIO_* variables don't reach a server, and a
//     server's secrets are in no error or output of this package.
package servers
