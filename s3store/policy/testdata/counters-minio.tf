# MinIO knows no conditions on If-Match and If-None-Match: nothing stops a writer who leaves the guard out from writing with no condition; only deletes and settings are denied
# attach each to a user or a group, not to the bucket: MinIO looks at a bucket's policy only for requests without credentials

resource "aws_iam_policy" "s3fence_writer" {
  name = "s3fence-bucket-writer"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid    = "Read"
        Effect = "Allow"
        Action = [
          "s3:GetObject",
          "s3:GetObjectTagging",
          "s3:GetObjectVersion",
        ]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
        ]
      },
      {
        Sid    = "Write"
        Effect = "Allow"
        Action = [
          "s3:AbortMultipartUpload",
          "s3:ListMultipartUploadParts",
          "s3:PutObject",
          "s3:PutObjectTagging",
        ]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/scopes/nightly.json",
          "arn:aws:s3:::bucket/.s3fence/scopes/nightly/report.json",
        ]
      },
      {
        Sid    = "List"
        Effect = "Allow"
        Action = [
          "s3:ListBucket",
          "s3:ListBucketVersions",
        ]
        Resource = ["arn:aws:s3:::bucket"]
      },
      {
        Sid    = "Settings"
        Effect = "Allow"
        Action = [
          "s3:GetBucketLocation",
          "s3:GetBucketObjectLockConfiguration",
          "s3:GetBucketVersioning",
          "s3:GetEncryptionConfiguration",
          "s3:ListBucketMultipartUploads",
        ]
        Resource = ["arn:aws:s3:::bucket"]
      },
      {
        Sid    = "IssuerCounters"
        Effect = "Allow"
        Action = [
          "s3:GetObject",
          "s3:PutObject",
        ]
        Resource = [
          "arn:aws:s3:::counters/.s3fence/counters/nightly.json",
          "arn:aws:s3:::counters/.s3fence/counters/nightly/report.json",
        ]
      },
      {
        Sid      = "IssuerProfile"
        Effect   = "Allow"
        Action   = ["s3:GetObject"]
        Resource = ["arn:aws:s3:::counters/.s3fence/profile.json"]
      },
      {
        Sid      = "IssuerList"
        Effect   = "Allow"
        Action   = ["s3:ListBucket"]
        Resource = ["arn:aws:s3:::counters"]
      },
      {
        Sid    = "DenyDeletes"
        Effect = "Deny"
        Action = [
          "s3:DeleteObject",
          "s3:DeleteObjectVersion",
          "s3:ReplicateDelete",
          "s3:ReplicateObject",
        ]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
          "arn:aws:s3:::counters/.s3fence/*",
        ]
      },
      {
        Sid    = "DenySettings"
        Effect = "Deny"
        Action = [
          "s3:DeleteBucket",
          "s3:DeleteBucketPolicy",
          "s3:PutBucketPolicy",
          "s3:PutBucketVersioning",
          "s3:PutEncryptionConfiguration",
          "s3:PutLifecycleConfiguration",
          "s3:PutReplicationConfiguration",
          "s3:ForceDeleteBucket",
        ]
        Resource = [
          "arn:aws:s3:::bucket",
          "arn:aws:s3:::counters",
        ]
      },
      {
        Sid    = "DenyProfile"
        Effect = "Deny"
        Action = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::bucket/.s3fence/profile.json",
          "arn:aws:s3:::counters/.s3fence/profile.json",
        ]
      },
    ]
  })
}

resource "aws_iam_policy" "s3fence_reader" {
  name = "s3fence-bucket-reader"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid    = "Read"
        Effect = "Allow"
        Action = [
          "s3:GetObject",
          "s3:GetObjectTagging",
          "s3:GetObjectVersion",
        ]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
        ]
      },
      {
        Sid    = "List"
        Effect = "Allow"
        Action = [
          "s3:ListBucket",
          "s3:ListBucketVersions",
        ]
        Resource = ["arn:aws:s3:::bucket"]
      },
      {
        Sid    = "Settings"
        Effect = "Allow"
        Action = [
          "s3:GetBucketLocation",
          "s3:GetBucketObjectLockConfiguration",
          "s3:GetBucketVersioning",
          "s3:GetEncryptionConfiguration",
        ]
        Resource = ["arn:aws:s3:::bucket"]
      },
      {
        Sid    = "DenyWrites"
        Effect = "Deny"
        Action = [
          "s3:DeleteObject",
          "s3:DeleteObjectVersion",
          "s3:ReplicateDelete",
          "s3:ReplicateObject",
          "s3:PutObject",
        ]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
          "arn:aws:s3:::counters/.s3fence/*",
        ]
      },
    ]
  })
}

resource "aws_iam_policy" "s3fence_admin" {
  name = "s3fence-bucket-admin"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid    = "Read"
        Effect = "Allow"
        Action = [
          "s3:GetObject",
          "s3:GetObjectTagging",
          "s3:GetObjectVersion",
        ]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
        ]
      },
      {
        Sid    = "List"
        Effect = "Allow"
        Action = [
          "s3:ListBucket",
          "s3:ListBucketVersions",
        ]
        Resource = ["arn:aws:s3:::bucket"]
      },
      {
        Sid    = "Settings"
        Effect = "Allow"
        Action = [
          "s3:GetBucketLocation",
          "s3:GetBucketObjectLockConfiguration",
          "s3:GetBucketVersioning",
          "s3:GetEncryptionConfiguration",
        ]
        Resource = ["arn:aws:s3:::bucket"]
      },
      {
        Sid    = "IssuerRead"
        Effect = "Allow"
        Action = [
          "s3:GetObject",
          "s3:GetObjectTagging",
          "s3:GetObjectVersion",
        ]
        Resource = ["arn:aws:s3:::counters/.s3fence/*"]
      },
      {
        Sid    = "IssuerList"
        Effect = "Allow"
        Action = [
          "s3:ListBucket",
          "s3:ListBucketVersions",
        ]
        Resource = ["arn:aws:s3:::counters"]
      },
      {
        Sid    = "IssuerSettings"
        Effect = "Allow"
        Action = [
          "s3:GetBucketLocation",
          "s3:GetBucketObjectLockConfiguration",
          "s3:GetBucketVersioning",
          "s3:GetEncryptionConfiguration",
        ]
        Resource = ["arn:aws:s3:::counters"]
      },
      {
        Sid    = "AdminObjects"
        Effect = "Allow"
        Action = [
          "s3:DeleteObject",
          "s3:DeleteObjectVersion",
          "s3:AbortMultipartUpload",
          "s3:ListMultipartUploadParts",
          "s3:PutObject",
          "s3:PutObjectTagging",
        ]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
          "arn:aws:s3:::counters/.s3fence/*",
        ]
      },
      {
        Sid    = "AdminBuckets"
        Effect = "Allow"
        Action = [
          "s3:GetLifecycleConfiguration",
          "s3:GetReplicationConfiguration",
          "s3:ListBucketMultipartUploads",
        ]
        Resource = [
          "arn:aws:s3:::bucket",
          "arn:aws:s3:::counters",
        ]
      },
    ]
  })
}
