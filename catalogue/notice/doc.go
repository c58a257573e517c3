// Package notice reads what a forge sends when somebody pushed, and tells whether its sender
// holds the secret it should. It does no I/O and trusts nothing it reads: a notice says which
// repository to look at and nothing about what stands there.
//
// # Who sends what
//
//	GitHub          X-GitHub-Event, X-Hub-Signature-256: sha256=<hex>
//	Gitea, Forgejo  X-Gitea-Event or X-Forgejo-Event; X-Gitea-Signature, X-Forgejo-Signature: <hex>
//	                and X-Hub-Signature-256 of the same value
//	GitLab          X-Gitlab-Event; X-Gitlab-Token: the secret itself, and where a signing token
//	                is set, webhook-id, webhook-timestamp, webhook-signature: v1,<base64>
//	anybody else    X-Hub-Signature-256, or the three of Standard Webhooks
//
// Every <hex> is HMAC-SHA256 over the body, keyed with the bytes of the secret. Gitea signs the
// JSON also where it sends it as a form. Standard Webhooks signs "<id>.<timestamp>.<body>", keyed
// with what stands in base64 behind "whsec_". A secret of [NewSecret] serves all of them.
//
// Each proof that a notice carries must hold, and it must carry one. Time stamps are not
// compared with the clock: a notice that is sent again only causes a look.
package notice
