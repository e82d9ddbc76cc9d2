# a bucket has one policy: put-bucket-policy replaces what is there; add its statements to these first
# the table's own policy is left out: its ARN takes --region and --account
# s3://bucket/ holds s3fence's own objects as well: a writer can raise the fences of other scopes; guard a prefix to prevent that

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
        Resource  = ["arn:aws:s3:::bucket/*"]
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
        Resource  = ["arn:aws:s3:::bucket/*"]
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
        Resource  = ["arn:aws:s3:::bucket/*"]
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
        Resource  = ["arn:aws:s3:::bucket/*"]
        Condition = {
          Null = {
            "s3:x-amz-copy-source" = "false"
          }
          BoolIfExists = {
            "s3:ObjectCreationOperation" = "true"
          }
          ArnNotLike = {
            "aws:PrincipalArn" = ["arn:aws:iam::111122223333:role/admin"]
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
        Resource = ["arn:aws:s3:::bucket/*"]
        Condition = {
          ArnNotLike = {
            "aws:PrincipalArn" = ["arn:aws:iam::111122223333:role/admin"]
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
            "aws:PrincipalArn" = ["arn:aws:iam::111122223333:role/admin"]
          }
        }
      },
      {
        Sid       = "DenyProfile"
        Effect    = "Deny"
        Principal = "*"
        Action    = ["s3:PutObject"]
        Resource  = ["arn:aws:s3:::bucket/.s3fence/profile.json"]
        Condition = {
          ArnNotLike = {
            "aws:PrincipalArn" = ["arn:aws:iam::111122223333:role/admin"]
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
        Resource = ["arn:aws:s3:::bucket/*"]
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
        Resource = ["arn:aws:s3:::bucket/*"]
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
        Sid    = "Keys"
        Effect = "Allow"
        Action = [
          "kms:Decrypt",
          "kms:GenerateDataKey",
        ]
        Resource = ["arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"]
      },
      {
        Sid      = "DenyUnconditionalWrites"
        Effect   = "Deny"
        Action   = ["s3:PutObject"]
        Resource = ["arn:aws:s3:::bucket/*"]
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
        Sid      = "DenyIfMatchAny"
        Effect   = "Deny"
        Action   = ["s3:PutObject"]
        Resource = ["arn:aws:s3:::bucket/*"]
        Condition = {
          StringEquals = {
            "s3:if-match" = "*"
          }
        }
      },
      {
        Sid      = "DenyIfNoneMatchOne"
        Effect   = "Deny"
        Action   = ["s3:PutObject"]
        Resource = ["arn:aws:s3:::bucket/*"]
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
        Sid      = "DenyCopies"
        Effect   = "Deny"
        Action   = ["s3:PutObject"]
        Resource = ["arn:aws:s3:::bucket/*"]
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
        Resource = ["arn:aws:s3:::bucket/*"]
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
        Resource = ["arn:aws:s3:::bucket"]
      },
      {
        Sid      = "DenyProfile"
        Effect   = "Deny"
        Action   = ["s3:PutObject"]
        Resource = ["arn:aws:s3:::bucket/.s3fence/profile.json"]
      },
      {
        Sid    = "Tokens"
        Effect = "Allow"
        Action = [
          "dynamodb:GetItem",
          "dynamodb:UpdateItem",
        ]
        Resource = ["arn:aws:dynamodb:*:*:table/s3fence"]
        Condition = {
          "ForAllValues:StringLike" = {
            "dynamodb:LeadingKeys" = ["nightly/*"]
          }
          Null = {
            "dynamodb:LeadingKeys" = "false"
          }
        }
      },
      {
        Sid      = "Table"
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeTable"]
        Resource = ["arn:aws:dynamodb:*:*:table/s3fence"]
      },
      {
        Sid      = "DenyOtherScopes"
        Effect   = "Deny"
        Action   = ["dynamodb:UpdateItem"]
        Resource = ["arn:aws:dynamodb:*:*:table/s3fence"]
        Condition = {
          "ForAnyValue:StringNotLike" = {
            "dynamodb:LeadingKeys" = ["nightly/*"]
          }
        }
      },
      {
        Sid    = "DenyTable"
        Effect = "Deny"
        Action = [
          "dynamodb:BatchWriteItem",
          "dynamodb:DeleteItem",
          "dynamodb:PartiQLDelete",
          "dynamodb:PartiQLInsert",
          "dynamodb:PartiQLUpdate",
          "dynamodb:PutItem",
          "dynamodb:DeleteResourcePolicy",
          "dynamodb:DeleteTable",
          "dynamodb:PutResourcePolicy",
          "dynamodb:UpdateTable",
          "dynamodb:UpdateTimeToLive",
          "dynamodb:CreateTable",
          "dynamodb:ImportTable",
          "dynamodb:RestoreTableFromAwsBackup",
          "dynamodb:RestoreTableFromBackup",
          "dynamodb:RestoreTableToPointInTime",
        ]
        Resource = ["arn:aws:dynamodb:*:*:table/s3fence"]
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
        Resource = ["arn:aws:s3:::bucket/*"]
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
        Sid      = "Keys"
        Effect   = "Allow"
        Action   = ["kms:Decrypt"]
        Resource = ["arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"]
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
        Resource = ["arn:aws:s3:::bucket/*"]
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
        Resource = ["arn:aws:s3:::bucket/*"]
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
        Sid    = "Keys"
        Effect = "Allow"
        Action = [
          "kms:Decrypt",
          "kms:GenerateDataKey",
        ]
        Resource = ["arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"]
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
        Resource = ["arn:aws:s3:::bucket/*"]
      },
      {
        Sid    = "AdminBuckets"
        Effect = "Allow"
        Action = [
          "s3:GetLifecycleConfiguration",
          "s3:GetReplicationConfiguration",
          "s3:ListBucketMultipartUploads",
        ]
        Resource = ["arn:aws:s3:::bucket"]
      },
      {
        Sid      = "DenyUnconditionalWrites"
        Effect   = "Deny"
        Action   = ["s3:PutObject"]
        Resource = ["arn:aws:s3:::bucket/*"]
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
        Sid      = "DenyIfMatchAny"
        Effect   = "Deny"
        Action   = ["s3:PutObject"]
        Resource = ["arn:aws:s3:::bucket/*"]
        Condition = {
          StringEquals = {
            "s3:if-match" = "*"
          }
        }
      },
      {
        Sid      = "DenyIfNoneMatchOne"
        Effect   = "Deny"
        Action   = ["s3:PutObject"]
        Resource = ["arn:aws:s3:::bucket/*"]
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
        Sid    = "AdminTable"
        Effect = "Allow"
        Action = [
          "dynamodb:CreateTable",
          "dynamodb:DescribeTable",
          "dynamodb:GetItem",
          "dynamodb:UpdateItem",
          "dynamodb:PutItem",
          "dynamodb:DescribeTimeToLive",
          "dynamodb:UpdateTimeToLive",
        ]
        Resource = ["arn:aws:dynamodb:*:*:table/s3fence"]
      },
    ]
  })
}
