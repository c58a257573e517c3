package schema

func (c *checker) values() {}

func (c *checker) module(m *Module)           {}
func (c *checker) manifest(m *Manifest)       {}
func (c *checker) declaration(d *Declaration) {}
func (c *checker) job(*Job)                   {}
func (c *checker) result(*Result)             {}
func (c *checker) report(*Report)             {}
