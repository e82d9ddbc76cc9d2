package faultproxy

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"net/http"
)

// Codes as S3 and DynamoDB give them with a status.
var (
	s3Codes = map[int]string{
		400: "InvalidRequest", 403: "AccessDenied", 404: "NoSuchKey", 405: "MethodNotAllowed",
		409: "ConditionalRequestConflict", 412: "PreconditionFailed", 429: "TooManyRequests",
		500: "InternalError", 501: "NotImplemented", 503: "SlowDown",
	}
	dynamoDBCodes = map[int]string{400: "ThrottlingException", 500: "InternalServerError", 503: "ServiceUnavailable"}
)

// injectedMessage tells a reader of a log that no server said this.
const injectedMessage = "injected by faultproxy"

// errorAnswer is an error of the kind of server that the request is for.
func errorAnswer(q *Request, status int) answer {
	a := answer{status: status, header: http.Header{}, head: q.Method == http.MethodHead}
	if q.Op != "" {
		code := dynamoDBCodes[status]
		if code == "" {
			code = "InternalServerError"
		}
		a.header.Set("Content-Type", "application/x-amz-json-1.0")
		a.header.Set("X-Amzn-Requestid", "faultproxy")
		a.body, _ = json.Marshal(map[string]string{ // strings always marshal
			"__type": "com.amazonaws.dynamodb.v20120810#" + code, "message": injectedMessage,
		})
		return a
	}
	code := s3Codes[status]
	if code == "" {
		code = "InternalError"
	}
	a.header.Set("X-Amz-Request-Id", "faultproxy")
	if status == http.StatusNoContent || status == http.StatusNotModified {
		return a
	}
	a.header.Set("Content-Type", "application/xml")
	var b bytes.Buffer
	b.WriteString(`<?xml version="1.0" encoding="UTF-8"?>` + "\n<Error><Code>" + code + "</Code><Message>" + injectedMessage + "</Message><Resource>")
	_ = xml.EscapeText(&b, []byte(q.Path))
	b.WriteString("</Resource><RequestId>faultproxy</RequestId></Error>")
	a.body = b.Bytes()
	return a
}
