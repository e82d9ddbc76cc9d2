package audit

import (
	"time"

	"github.com/s3fence/s3fence/guard"
)

// A History is what can be drawn of a key: its versions, the newest first, and
// what was found. Both are bounded: of a long history it has the newest, those
// at which something was found, and the oldest.
type History struct {
	Key, URL string
	// Total is how many versions and delete markers there are.
	Total    int64
	Versions []Version
	Findings []Finding
	// MoreFindings were left out of Findings.
	MoreFindings int64
	// Worst is the worst severity of all that was found.
	Worst Severity
}

// A Version is one version of a key.
type Version struct {
	ID           string
	DeleteMarker bool
	// Corrupt says that there is a record that does not parse, Unreadable that
	// the store did not show it. Otherwise a nil Record is none.
	Corrupt, Unreadable bool
	Record              *guard.Record
	Size                int64
	LastModified        time.Time
	// Found is what was found at this very version.
	Found []Mark
	// Skipped versions are left out between this one and the next newer one.
	Skipped int64

	keep bool
}

// A Mark is what was found, in short.
type Mark struct {
	Kind     Kind
	Severity Severity
}

const (
	maxNewest   = 40 // versions of a key that are always kept
	maxKept     = 40 // and more of them, where something was found
	maxFindings = 20
	maxMarks    = 8 // at one version
)

// shown makes a History while the versions come by.
type shown struct {
	on      bool
	h       History
	tail    []Version // the last ones that came by, of which it is open whether they are kept
	skipped int64
}

func (s *shown) add(e entry) {
	if !s.on {
		return
	}
	s.h.Total++
	v := Version{ID: e.ID, DeleteMarker: e.DeleteMarker, Unreadable: e.err != nil, Size: e.Size, LastModified: e.LastModified}
	if len(s.h.Versions) < maxNewest {
		s.h.Versions = append(s.h.Versions, v)
		return
	}
	s.tail = append(s.tail, v)
	if len(s.tail) > 2 {
		s.release(s.tail[0].keep)
	}
}

// release decides about the newest of the tail.
func (s *shown) release(keep bool) {
	v := s.tail[0]
	s.tail = append(s.tail[:0], s.tail[1:]...)
	if !keep || len(s.h.Versions) >= maxNewest+maxKept {
		s.skipped++
		return
	}
	v.Skipped, s.skipped = s.skipped, 0
	s.h.Versions = append(s.h.Versions, v)
}

// last is the version that came by last.
func (s *shown) last() *Version {
	switch {
	case !s.on:
		return &Version{}
	case len(s.tail) > 0:
		return &s.tail[len(s.tail)-1]
	}
	return &s.h.Versions[len(s.h.Versions)-1]
}

func (s *shown) record(r guard.Record) { s.last().Record = &r }

func (s *shown) corrupt() { s.last().Corrupt = true }

// found keeps a finding, and the version that it was found at, next to the one
// that came by last.
func (s *shown) found(f Finding) {
	if !s.on {
		return
	}
	s.h.Worst = max(s.h.Worst, f.Severity)
	if len(s.h.Findings) < maxFindings {
		s.h.Findings = append(s.h.Findings, f)
	} else {
		s.h.MoreFindings++
	}
	s.last().keep = true
	for _, vs := range [][]Version{s.tail, s.h.Versions} {
		for i := range vs {
			if v := &vs[i]; v.ID == f.VersionID {
				v.keep = true
				if len(v.Found) < maxMarks {
					v.Found = append(v.Found, Mark{f.Kind, f.Severity})
				}
				return
			}
		}
	}
}

// history ends it.
func (s *shown) history() History {
	for len(s.tail) > 0 {
		keep := s.tail[0].keep
		if len(s.tail) == 1 { // the oldest
			keep = true
			if n := len(s.h.Versions); n >= maxNewest+maxKept {
				s.h.Versions = s.h.Versions[:n-1]
				s.skipped++
			}
		}
		s.release(keep)
	}
	return s.h
}
