package plan

import (
	"strings"
	"time"
)

// The reasons of a container that waits because something has failed.
const (
	ReasonErrImagePull      = "ErrImagePull"
	ReasonImagePullBackOff  = "ImagePullBackOff"
	ReasonErrImageNeverPull = "ErrImageNeverPull"
	ReasonInvalidImageName  = "InvalidImageName"
	ReasonImageInspect      = "ImageInspectError"
	ReasonConfig            = "CreateContainerConfigError"
	ReasonCreate            = "CreateContainerError"
	ReasonRun               = "RunContainerError"
	ReasonPostStart         = "PostStartHookError"
	ReasonClaims            = "FailedPrepareDynamicResources" // by the name of kubelet's event
)

// KindOf is the kind of the step that has the key.
func KindOf(key string) Kind {
	k, _, _ := strings.Cut(key, "/")
	return Kind(k)
}

// Failure is what became of a step, and when it may be tried again.
type Failure struct {
	Reason, Message string
	Err             error
	At, Until       time.Time
	Count           int
}
