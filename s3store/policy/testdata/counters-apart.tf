# a bucket has one policy: put-bucket-policy replaces what is there; add its statements to these first

resource "aws_s3_bucket_policy" "s3fence_bucket" {
  bucket = "bucket"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "DenyUnconditionalWrites"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
        ]
        Condition = {
          Null = {
            "s3:if-match"      = "true"
            "s3:if-none-match" = "true"
          }
          BoolIfExists = {
            "s3:ObjectCreationOperation" = "true"
          }
        }
      },
      {
        Sid       = "DenyIfMatchAny"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
        ]
        Condition = {
          StringEquals = {
            "s3:if-match" = "*"
          }
        }
      },
      {
        Sid       = "DenyIfNoneMatchOne"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
        ]
        Condition = {
          Null = {
            "s3:if-none-match" = "false"
          }
          StringNotEquals = {
            "s3:if-none-match" = "*"
          }
        }
      },
      {
        Sid       = "DenyCopies"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
        ]
        Condition = {
          Null = {
            "s3:x-amz-copy-source" = "false"
          }
          BoolIfExists = {
            "s3:ObjectCreationOperation" = "true"
          }
          ArnNotLike = {
            "aws:PrincipalArn" = [
              "arn:aws:iam::111122223333:role/admin",
              "arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/*/AWSReservedSSO_Admin_*",
            ]
          }
        }
      },
      {
        Sid       = "DenyDeletes"
        Effect    = "Deny"
        Principal = "*"
        Action = [
          "s3:DeleteObject",
          "s3:DeleteObjectVersion",
          "s3:ReplicateDelete",
          "s3:ReplicateObject",
        ]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
        ]
        Condition = {
          ArnNotLike = {
            "aws:PrincipalArn" = [
              "arn:aws:iam::111122223333:role/admin",
              "arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/*/AWSReservedSSO_Admin_*",
            ]
          }
        }
      },
      {
        Sid       = "DenySettings"
        Effect    = "Deny"
        Principal = "*"
        Action = [
          "s3:DeleteBucket",
          "s3:DeleteBucketPolicy",
          "s3:PutBucketPolicy",
          "s3:PutBucketVersioning",
          "s3:PutEncryptionConfiguration",
          "s3:PutLifecycleConfiguration",
          "s3:PutReplicationConfiguration",
        ]
        Resource = ["arn:aws:s3:::bucket"]
        Condition = {
          ArnNotLike = {
            "aws:PrincipalArn" = [
              "arn:aws:iam::111122223333:role/admin",
              "arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/*/AWSReservedSSO_Admin_*",
            ]
          }
        }
      },
      {
        Sid    = "WritersRead"
        Effect = "Allow"
        Principal = {
          AWS = ["arn:aws:iam::444455556666:role/job"]
        }
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
        Sid    = "WritersWrite"
        Effect = "Allow"
        Principal = {
          AWS = ["arn:aws:iam::444455556666:role/job"]
        }
        Action = [
          "s3:AbortMultipartUpload",
          "s3:ListMultipartUploadParts",
          "s3:PutObject",
          "s3:PutObjectTagging",
        ]
        Resource = ["arn:aws:s3:::bucket/reports/*"]
      },
      {
        Sid    = "WritersList"
        Effect = "Allow"
        Principal = {
          AWS = ["arn:aws:iam::444455556666:role/job"]
        }
        Action = [
          "s3:ListBucket",
          "s3:ListBucketVersions",
        ]
        Resource = ["arn:aws:s3:::bucket"]
        Condition = {
          StringLikeIfExists = {
            "s3:prefix" = [
              "reports/*",
              ".s3fence/*",
            ]
          }
        }
      },
      {
        Sid    = "WritersSettings"
        Effect = "Allow"
        Principal = {
          AWS = ["arn:aws:iam::444455556666:role/job"]
        }
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
        Sid    = "ReadersRead"
        Effect = "Allow"
        Principal = {
          AWS = [
            "arn:aws:iam::444455556666:role/reader",
            "arn:aws:iam::444455556666:user/ann",
          ]
        }
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
        Sid    = "ReadersList"
        Effect = "Allow"
        Principal = {
          AWS = [
            "arn:aws:iam::444455556666:role/reader",
            "arn:aws:iam::444455556666:user/ann",
          ]
        }
        Action = [
          "s3:ListBucket",
          "s3:ListBucketVersions",
        ]
        Resource = ["arn:aws:s3:::bucket"]
        Condition = {
          StringLikeIfExists = {
            "s3:prefix" = [
              "reports/*",
              ".s3fence/*",
            ]
          }
        }
      },
      {
        Sid    = "ReadersSettings"
        Effect = "Allow"
        Principal = {
          AWS = [
            "arn:aws:iam::444455556666:role/reader",
            "arn:aws:iam::444455556666:user/ann",
          ]
        }
        Action = [
          "s3:GetBucketLocation",
          "s3:GetBucketObjectLockConfiguration",
          "s3:GetBucketVersioning",
          "s3:GetEncryptionConfiguration",
        ]
        Resource = ["arn:aws:s3:::bucket"]
      },
    ]
  })
}

resource "aws_s3_bucket_policy" "s3fence_bucket_root" {
  bucket = "roots"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "DenyUnconditionalWrites"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
        ]
        Condition = {
          Null = {
            "s3:if-match"      = "true"
            "s3:if-none-match" = "true"
          }
          BoolIfExists = {
            "s3:ObjectCreationOperation" = "true"
          }
        }
      },
      {
        Sid       = "DenyIfMatchAny"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
        ]
        Condition = {
          StringEquals = {
            "s3:if-match" = "*"
          }
        }
      },
      {
        Sid       = "DenyIfNoneMatchOne"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
        ]
        Condition = {
          Null = {
            "s3:if-none-match" = "false"
          }
          StringNotEquals = {
            "s3:if-none-match" = "*"
          }
        }
      },
      {
        Sid       = "DenyCopies"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
        ]
        Condition = {
          Null = {
            "s3:x-amz-copy-source" = "false"
          }
          BoolIfExists = {
            "s3:ObjectCreationOperation" = "true"
          }
          ArnNotLike = {
            "aws:PrincipalArn" = [
              "arn:aws:iam::111122223333:role/admin",
              "arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/*/AWSReservedSSO_Admin_*",
            ]
          }
        }
      },
      {
        Sid       = "DenyDeletes"
        Effect    = "Deny"
        Principal = "*"
        Action = [
          "s3:DeleteObject",
          "s3:DeleteObjectVersion",
          "s3:ReplicateDelete",
          "s3:ReplicateObject",
        ]
        Resource = [
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
        ]
        Condition = {
          ArnNotLike = {
            "aws:PrincipalArn" = [
              "arn:aws:iam::111122223333:role/admin",
              "arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/*/AWSReservedSSO_Admin_*",
            ]
          }
        }
      },
      {
        Sid       = "DenySettings"
        Effect    = "Deny"
        Principal = "*"
        Action = [
          "s3:DeleteBucket",
          "s3:DeleteBucketPolicy",
          "s3:PutBucketPolicy",
          "s3:PutBucketVersioning",
          "s3:PutEncryptionConfiguration",
          "s3:PutLifecycleConfiguration",
          "s3:PutReplicationConfiguration",
        ]
        Resource = ["arn:aws:s3:::roots"]
        Condition = {
          ArnNotLike = {
            "aws:PrincipalArn" = [
              "arn:aws:iam::111122223333:role/admin",
              "arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/*/AWSReservedSSO_Admin_*",
            ]
          }
        }
      },
      {
        Sid       = "DenyProfile"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/profile.json",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/profile.json",
        ]
        Condition = {
          ArnNotLike = {
            "aws:PrincipalArn" = [
              "arn:aws:iam::111122223333:role/admin",
              "arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/*/AWSReservedSSO_Admin_*",
            ]
          }
        }
      },
      {
        Sid    = "WritersRead"
        Effect = "Allow"
        Principal = {
          AWS = ["arn:aws:iam::444455556666:role/job"]
        }
        Action = [
          "s3:GetObject",
          "s3:GetObjectTagging",
          "s3:GetObjectVersion",
        ]
        Resource = [
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
        ]
      },
      {
        Sid    = "WritersWrite"
        Effect = "Allow"
        Principal = {
          AWS = ["arn:aws:iam::444455556666:role/job"]
        }
        Action = [
          "s3:AbortMultipartUpload",
          "s3:ListMultipartUploadParts",
          "s3:PutObject",
          "s3:PutObjectTagging",
        ]
        Resource = [
          "arn:aws:s3:::roots/s3fence/.s3fence/scopes/nightly.json",
          "arn:aws:s3:::roots/s3fence/.s3fence/scopes/nightly/report.json",
        ]
      },
      {
        Sid    = "WritersList"
        Effect = "Allow"
        Principal = {
          AWS = ["arn:aws:iam::444455556666:role/job"]
        }
        Action = [
          "s3:ListBucket",
          "s3:ListBucketVersions",
        ]
        Resource = ["arn:aws:s3:::roots"]
        Condition = {
          StringLikeIfExists = {
            "s3:prefix" = [
              "s3fence/.s3fence/*",
              "s3fence/bucket/.s3fence/*",
              "s3fence/counters/.s3fence/*",
            ]
          }
        }
      },
      {
        Sid    = "WritersSettings"
        Effect = "Allow"
        Principal = {
          AWS = ["arn:aws:iam::444455556666:role/job"]
        }
        Action = [
          "s3:GetBucketLocation",
          "s3:GetBucketObjectLockConfiguration",
          "s3:GetBucketVersioning",
          "s3:GetEncryptionConfiguration",
          "s3:ListBucketMultipartUploads",
        ]
        Resource = ["arn:aws:s3:::roots"]
      },
      {
        Sid    = "ReadersRead"
        Effect = "Allow"
        Principal = {
          AWS = [
            "arn:aws:iam::444455556666:role/reader",
            "arn:aws:iam::444455556666:user/ann",
          ]
        }
        Action = [
          "s3:GetObject",
          "s3:GetObjectTagging",
          "s3:GetObjectVersion",
        ]
        Resource = [
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
        ]
      },
      {
        Sid    = "ReadersList"
        Effect = "Allow"
        Principal = {
          AWS = [
            "arn:aws:iam::444455556666:role/reader",
            "arn:aws:iam::444455556666:user/ann",
          ]
        }
        Action = [
          "s3:ListBucket",
          "s3:ListBucketVersions",
        ]
        Resource = ["arn:aws:s3:::roots"]
        Condition = {
          StringLikeIfExists = {
            "s3:prefix" = [
              "s3fence/.s3fence/*",
              "s3fence/bucket/.s3fence/*",
              "s3fence/counters/.s3fence/*",
            ]
          }
        }
      },
      {
        Sid    = "ReadersSettings"
        Effect = "Allow"
        Principal = {
          AWS = [
            "arn:aws:iam::444455556666:role/reader",
            "arn:aws:iam::444455556666:user/ann",
          ]
        }
        Action = [
          "s3:GetBucketLocation",
          "s3:GetBucketObjectLockConfiguration",
          "s3:GetBucketVersioning",
          "s3:GetEncryptionConfiguration",
        ]
        Resource = ["arn:aws:s3:::roots"]
      },
    ]
  })
}

resource "aws_s3_bucket_policy" "s3fence_bucket_issuer" {
  bucket = "counters"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "DenyUnconditionalWrites"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject"]
        Resource  = ["arn:aws:s3:::counters/.s3fence/*"]
        Condition = {
          Null = {
            "s3:if-match"      = "true"
            "s3:if-none-match" = "true"
          }
          BoolIfExists = {
            "s3:ObjectCreationOperation" = "true"
          }
        }
      },
      {
        Sid       = "DenyIfMatchAny"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject"]
        Resource  = ["arn:aws:s3:::counters/.s3fence/*"]
        Condition = {
          StringEquals = {
            "s3:if-match" = "*"
          }
        }
      },
      {
        Sid       = "DenyIfNoneMatchOne"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject"]
        Resource  = ["arn:aws:s3:::counters/.s3fence/*"]
        Condition = {
          Null = {
            "s3:if-none-match" = "false"
          }
          StringNotEquals = {
            "s3:if-none-match" = "*"
          }
        }
      },
      {
        Sid       = "DenyCopies"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject"]
        Resource  = ["arn:aws:s3:::counters/.s3fence/*"]
        Condition = {
          Null = {
            "s3:x-amz-copy-source" = "false"
          }
          BoolIfExists = {
            "s3:ObjectCreationOperation" = "true"
          }
          ArnNotLike = {
            "aws:PrincipalArn" = [
              "arn:aws:iam::111122223333:role/admin",
              "arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/*/AWSReservedSSO_Admin_*",
            ]
          }
        }
      },
      {
        Sid       = "DenyDeletes"
        Effect    = "Deny"
        Principal = "*"
        Action = [
          "s3:DeleteObject",
          "s3:DeleteObjectVersion",
          "s3:ReplicateDelete",
          "s3:ReplicateObject",
        ]
        Resource = ["arn:aws:s3:::counters/.s3fence/*"]
        Condition = {
          ArnNotLike = {
            "aws:PrincipalArn" = [
              "arn:aws:iam::111122223333:role/admin",
              "arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/*/AWSReservedSSO_Admin_*",
            ]
          }
        }
      },
      {
        Sid       = "DenySettings"
        Effect    = "Deny"
        Principal = "*"
        Action = [
          "s3:DeleteBucket",
          "s3:DeleteBucketPolicy",
          "s3:PutBucketPolicy",
          "s3:PutBucketVersioning",
          "s3:PutEncryptionConfiguration",
          "s3:PutLifecycleConfiguration",
          "s3:PutReplicationConfiguration",
        ]
        Resource = ["arn:aws:s3:::counters"]
        Condition = {
          ArnNotLike = {
            "aws:PrincipalArn" = [
              "arn:aws:iam::111122223333:role/admin",
              "arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/*/AWSReservedSSO_Admin_*",
            ]
          }
        }
      },
      {
        Sid    = "WritersCounters"
        Effect = "Allow"
        Principal = {
          AWS = ["arn:aws:iam::444455556666:role/job"]
        }
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
        Sid    = "WritersList"
        Effect = "Allow"
        Principal = {
          AWS = ["arn:aws:iam::444455556666:role/job"]
        }
        Action   = ["s3:ListBucket"]
        Resource = ["arn:aws:s3:::counters"]
        Condition = {
          StringLikeIfExists = {
            "s3:prefix" = [".s3fence/*"]
          }
        }
      },
    ]
  })
}

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
        Resource = ["arn:aws:s3:::bucket/reports/*"]
      },
      {
        Sid    = "List"
        Effect = "Allow"
        Action = [
          "s3:ListBucket",
          "s3:ListBucketVersions",
        ]
        Resource = ["arn:aws:s3:::bucket"]
        Condition = {
          StringLikeIfExists = {
            "s3:prefix" = [
              "reports/*",
              ".s3fence/*",
            ]
          }
        }
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
        Sid    = "RootRead"
        Effect = "Allow"
        Action = [
          "s3:GetObject",
          "s3:GetObjectTagging",
          "s3:GetObjectVersion",
        ]
        Resource = [
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
        ]
      },
      {
        Sid    = "RootWrite"
        Effect = "Allow"
        Action = [
          "s3:AbortMultipartUpload",
          "s3:ListMultipartUploadParts",
          "s3:PutObject",
          "s3:PutObjectTagging",
        ]
        Resource = [
          "arn:aws:s3:::roots/s3fence/.s3fence/scopes/nightly.json",
          "arn:aws:s3:::roots/s3fence/.s3fence/scopes/nightly/report.json",
        ]
      },
      {
        Sid    = "RootList"
        Effect = "Allow"
        Action = [
          "s3:ListBucket",
          "s3:ListBucketVersions",
        ]
        Resource = ["arn:aws:s3:::roots"]
        Condition = {
          StringLikeIfExists = {
            "s3:prefix" = [
              "s3fence/.s3fence/*",
              "s3fence/bucket/.s3fence/*",
              "s3fence/counters/.s3fence/*",
            ]
          }
        }
      },
      {
        Sid    = "RootSettings"
        Effect = "Allow"
        Action = [
          "s3:GetBucketLocation",
          "s3:GetBucketObjectLockConfiguration",
          "s3:GetBucketVersioning",
          "s3:GetEncryptionConfiguration",
          "s3:ListBucketMultipartUploads",
        ]
        Resource = ["arn:aws:s3:::roots"]
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
        Sid      = "IssuerList"
        Effect   = "Allow"
        Action   = ["s3:ListBucket"]
        Resource = ["arn:aws:s3:::counters"]
        Condition = {
          StringLikeIfExists = {
            "s3:prefix" = [".s3fence/*"]
          }
        }
      },
      {
        Sid    = "DenyUnconditionalWrites"
        Effect = "Deny"
        Action = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
          "arn:aws:s3:::counters/.s3fence/*",
        ]
        Condition = {
          Null = {
            "s3:if-match"      = "true"
            "s3:if-none-match" = "true"
          }
          BoolIfExists = {
            "s3:ObjectCreationOperation" = "true"
          }
        }
      },
      {
        Sid    = "DenyIfMatchAny"
        Effect = "Deny"
        Action = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
          "arn:aws:s3:::counters/.s3fence/*",
        ]
        Condition = {
          StringEquals = {
            "s3:if-match" = "*"
          }
        }
      },
      {
        Sid    = "DenyIfNoneMatchOne"
        Effect = "Deny"
        Action = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
          "arn:aws:s3:::counters/.s3fence/*",
        ]
        Condition = {
          Null = {
            "s3:if-none-match" = "false"
          }
          StringNotEquals = {
            "s3:if-none-match" = "*"
          }
        }
      },
      {
        Sid    = "DenyCopies"
        Effect = "Deny"
        Action = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
          "arn:aws:s3:::counters/.s3fence/*",
        ]
        Condition = {
          Null = {
            "s3:x-amz-copy-source" = "false"
          }
          BoolIfExists = {
            "s3:ObjectCreationOperation" = "true"
          }
        }
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
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
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
        ]
        Resource = [
          "arn:aws:s3:::bucket",
          "arn:aws:s3:::roots",
          "arn:aws:s3:::counters",
        ]
      },
      {
        Sid    = "DenyProfile"
        Effect = "Deny"
        Action = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/profile.json",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/profile.json",
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
        Condition = {
          StringLikeIfExists = {
            "s3:prefix" = [
              "reports/*",
              ".s3fence/*",
            ]
          }
        }
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
        Sid    = "RootRead"
        Effect = "Allow"
        Action = [
          "s3:GetObject",
          "s3:GetObjectTagging",
          "s3:GetObjectVersion",
        ]
        Resource = [
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
        ]
      },
      {
        Sid    = "RootList"
        Effect = "Allow"
        Action = [
          "s3:ListBucket",
          "s3:ListBucketVersions",
        ]
        Resource = ["arn:aws:s3:::roots"]
        Condition = {
          StringLikeIfExists = {
            "s3:prefix" = [
              "s3fence/.s3fence/*",
              "s3fence/bucket/.s3fence/*",
              "s3fence/counters/.s3fence/*",
            ]
          }
        }
      },
      {
        Sid    = "RootSettings"
        Effect = "Allow"
        Action = [
          "s3:GetBucketLocation",
          "s3:GetBucketObjectLockConfiguration",
          "s3:GetBucketVersioning",
          "s3:GetEncryptionConfiguration",
        ]
        Resource = ["arn:aws:s3:::roots"]
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
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
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
        Condition = {
          StringLikeIfExists = {
            "s3:prefix" = [
              "reports/*",
              ".s3fence/*",
            ]
          }
        }
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
        Sid    = "RootRead"
        Effect = "Allow"
        Action = [
          "s3:GetObject",
          "s3:GetObjectTagging",
          "s3:GetObjectVersion",
        ]
        Resource = [
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
        ]
      },
      {
        Sid    = "RootList"
        Effect = "Allow"
        Action = [
          "s3:ListBucket",
          "s3:ListBucketVersions",
        ]
        Resource = ["arn:aws:s3:::roots"]
        Condition = {
          StringLikeIfExists = {
            "s3:prefix" = [
              "s3fence/.s3fence/*",
              "s3fence/bucket/.s3fence/*",
              "s3fence/counters/.s3fence/*",
            ]
          }
        }
      },
      {
        Sid    = "RootSettings"
        Effect = "Allow"
        Action = [
          "s3:GetBucketLocation",
          "s3:GetBucketObjectLockConfiguration",
          "s3:GetBucketVersioning",
          "s3:GetEncryptionConfiguration",
        ]
        Resource = ["arn:aws:s3:::roots"]
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
        Condition = {
          StringLikeIfExists = {
            "s3:prefix" = [".s3fence/*"]
          }
        }
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
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
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
          "arn:aws:s3:::roots",
          "arn:aws:s3:::counters",
        ]
      },
      {
        Sid    = "DenyUnconditionalWrites"
        Effect = "Deny"
        Action = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
          "arn:aws:s3:::counters/.s3fence/*",
        ]
        Condition = {
          Null = {
            "s3:if-match"      = "true"
            "s3:if-none-match" = "true"
          }
          BoolIfExists = {
            "s3:ObjectCreationOperation" = "true"
          }
        }
      },
      {
        Sid    = "DenyIfMatchAny"
        Effect = "Deny"
        Action = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
          "arn:aws:s3:::counters/.s3fence/*",
        ]
        Condition = {
          StringEquals = {
            "s3:if-match" = "*"
          }
        }
      },
      {
        Sid    = "DenyIfNoneMatchOne"
        Effect = "Deny"
        Action = ["s3:PutObject"]
        Resource = [
          "arn:aws:s3:::bucket/reports/*",
          "arn:aws:s3:::bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/bucket/.s3fence/*",
          "arn:aws:s3:::roots/s3fence/counters/.s3fence/*",
          "arn:aws:s3:::counters/.s3fence/*",
        ]
        Condition = {
          Null = {
            "s3:if-none-match" = "false"
          }
          StringNotEquals = {
            "s3:if-none-match" = "*"
          }
        }
      },
    ]
  })
}
