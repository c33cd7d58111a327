SELECT procrastinate_defer_jobs_v1(ARRAY[ROW('bench', 'bench', 0, NULL, NULL, :body, NULL)]::procrastinate_job_to_defer_v1[]);
