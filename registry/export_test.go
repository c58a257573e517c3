package registry

import "time"

// RetryAfter is how long a client waits that is told to.
func RetryAfter(header string) time.Duration { return retryAfter(header, time.Now()) }
