// Package imageapi is what the HTTP interface to the images of a node says, whichever runtime has them: `berth images`
// reads it, and both the embedded runtime and the one behind a socket write it.
package imageapi

import "time"

// Image is an image as the HTTP interface shows it.
type Image struct {
	ID       string    `json:"id"`
	Tags     []string  `json:"tags,omitempty"`
	Digests  []string  `json:"digests,omitempty"`
	Size     int64     `json:"size"`
	Pinned   bool      `json:"pinned,omitempty"`
	PulledAt time.Time `json:"pulledAt"`
}

// Line is one line of the answer to a pull or an import: progress many times, then the images or an error.
type Line struct {
	Progress *Progress `json:"progress,omitempty"`
	Images   []Image   `json:"images,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// Progress says how far a layer is, or the image as a whole where Layer is empty.
type Progress struct {
	Ref   string `json:"ref,omitempty"`
	Layer string `json:"layer,omitempty"`
	Phase string `json:"phase"`
	Done  int64  `json:"done,omitempty"`
	Total int64  `json:"total,omitempty"` // 0 = not known
}
